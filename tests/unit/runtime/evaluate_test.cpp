#include "runtime/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "runtime/sampler.h"
#include "runtime/session.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

using Tokens = std::vector<int32_t>;

std::vector<Tokens> random_sequences(const std::vector<int64_t>& lengths) {
  Philox rng{11, 0, 0};
  std::vector<Tokens> sequences;
  for (const int64_t length : lengths) {
    auto& tokens = sequences.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      tokens.push_back(static_cast<int32_t>(rng.next_below(11)));
    }
  }
  return sequences;
}

/// Bits of each sequence, token by token through sessions.
std::vector<double> bits_by_session(const std::shared_ptr<const model::Model>& model,
                                    const std::vector<Tokens>& sequences) {
  Generator generator(model, nullptr);
  std::vector<double> bits;
  for (const Tokens& tokens : sequences) {
    Session session(model, {});
    double sum = 0.0;
    for (const int32_t token : tokens) {
      EXPECT_TRUE(generator.feed(session, {}).ok());
      sum -= head_log_prob(model->config().head, session.output(), token) / std::log(2.0);
      EXPECT_TRUE(session.append({&token, 1}).ok());
    }
    bits.push_back(sum);
  }
  return bits;
}

TEST(Evaluate, EveryFormGivesTheBitsOfTheTokenLoop) {
  const std::vector<int64_t> lengths{40, 1, 96, 33, 0, 17};
  const auto sequences = random_sequences(lengths);
  const std::vector<std::string> heads{
      TinyOptions{}.head,
      R"({"kind": "discretised_logistic_mixture", "components": 3, "levels": 11})"};
  for (const std::string& head : heads) {
    for (const NamedMixers& stack : causal_stacks(true)) {
      SCOPED_TRACE(stack.name);
      const auto model = tiny_model(stack.layers, {.head = head});
      const auto bits = bits_by_session(model, sequences);
      double total = 0.0;
      for (const double value : bits) total += value;
      const double mean = total / 187.0;
      double squares = 0.0;
      for (size_t i = 0; i < bits.size(); ++i) {
        squares += std::pow(bits[i] - mean * static_cast<double>(lengths[i]), 2);
      }
      const double error = std::sqrt(squares * 6.0 / 5.0) / 187.0;
      // Log probabilities inherit the relative error of the outputs, of order 100 eps of f32
      // through two layers with layer norms; head outputs and bits are of order 1 to 10.
      const double tolerance = 1000.0 * std::numeric_limits<float>::epsilon() * mean;
      for (const auto form : {mixers::Form::kChunk, mixers::Form::kParallel, mixers::Form::kStep,
                              mixers::Form::kAuto}) {
        for (const int64_t batch : {1, 4, 100}) {
          ThreadPool pool(2);
          const auto result = evaluate(model, sequences, {.batch = batch, .form = form}, &pool);
          ASSERT_TRUE(result.ok());
          EXPECT_NEAR(result->bits_per_dim, mean, tolerance);
          EXPECT_NEAR(result->standard_error, error, tolerance);
          EXPECT_EQ(result->tokens, 187);
          EXPECT_EQ(result->sequences, 6);
        }
      }
    }
  }
}

TEST(Evaluate, MasksSayWhichTokensBitsAndAccuracyAreAbout) {
  const std::vector<int64_t> lengths{40, 1, 96, 33, 0, 17};
  auto sequences = random_sequences(lengths);
  const auto model = tiny_model(causal_stacks(true).front().layers);
  const model::HeadConfig& head = model->config().head;
  Philox rng{12, 0, 0};
  std::vector<std::vector<uint8_t>> masks;
  std::vector<double> bits;
  std::vector<int64_t> counts;
  int64_t counted = 0, right = 0;
  double total = 0.0;
  Generator generator(model, nullptr);
  for (Tokens& tokens : sequences) {
    Session session(model, {});
    auto& mask = masks.emplace_back();
    bits.push_back(0.0);
    counts.push_back(0);
    for (int32_t& token : tokens) {
      ASSERT_TRUE(generator.feed(session, {}).ok());
      const auto output = session.output();
      const auto best =
          static_cast<int32_t>(std::max_element(output.begin(), output.end()) - output.begin());
      if (rng.next_below(2) == 0) token = best;
      mask.push_back(static_cast<uint8_t>(rng.next_below(3)));  // any number but 0 counts
      if (mask.back() != 0) {
        bits.back() -= head_log_prob(head, output, token) / std::log(2.0);
        ++counts.back();
        right += token == best ? 1 : 0;
      }
      ASSERT_TRUE(session.append({&token, 1}).ok());
    }
    counted += counts.back();
    total += bits.back();
  }
  const double mean = total / static_cast<double>(counted);
  double squares = 0.0;
  for (size_t i = 0; i < bits.size(); ++i) {
    squares += std::pow(bits[i] - mean * static_cast<double>(counts[i]), 2);
  }
  const double tolerance = 1000.0 * std::numeric_limits<float>::epsilon() * mean;
  for (const auto form : {mixers::Form::kChunk, mixers::Form::kParallel, mixers::Form::kStep}) {
    for (const int64_t batch : {1, 4}) {
      const auto result =
          evaluate(model, sequences, {.batch = batch, .form = form, .counted = masks}, nullptr);
      ASSERT_TRUE(result.ok()) << result.error().to_string();
      EXPECT_NEAR(result->bits_per_dim, mean, tolerance);
      EXPECT_NEAR(result->standard_error,
                  std::sqrt(squares * 6.0 / 5.0) / static_cast<double>(counted), tolerance);
      EXPECT_EQ(result->counted_tokens, counted);
      EXPECT_EQ(result->tokens, 187);
      ASSERT_TRUE(result->accuracy.has_value());
      EXPECT_EQ(*result->accuracy, static_cast<double>(right) / static_cast<double>(counted));
    }
  }
}

TEST(Evaluate, AccuracyNeedsClasses) {
  const auto sequences = random_sequences({9});
  const std::vector<Json> layers = causal_stacks(true).front().layers;
  const auto classes = evaluate(tiny_model(layers), sequences, {}, nullptr);
  const auto mixture = evaluate(
      tiny_model(layers, {.head = R"({"kind": "discretised_logistic_mixture", "components": 3,
                                      "levels": 11})"}),
      sequences, {}, nullptr);
  ASSERT_TRUE(classes.ok() && mixture.ok());
  EXPECT_TRUE(classes->accuracy.has_value());
  EXPECT_EQ(classes->counted_tokens, 9);
  EXPECT_FALSE(mixture->accuracy.has_value());
}

TEST(Evaluate, LongSequencesGoInPieces) {
  const auto sequences = random_sequences({2500, 1025, 1024});
  for (const NamedMixers& stack : causal_stacks(true)) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers, {.max_tokens = 0});
    const auto parallel = evaluate(model, sequences, {.form = mixers::Form::kParallel}, nullptr);
    const auto chunk = evaluate(model, sequences, {}, nullptr);
    const auto alone = evaluate(model, sequences, {.batch = 1}, nullptr);
    ASSERT_TRUE(parallel.ok());
    ASSERT_TRUE(chunk.ok());
    EXPECT_NEAR(chunk->bits_per_dim, parallel->bits_per_dim,
                1000.0 * std::numeric_limits<float>::epsilon() * parallel->bits_per_dim);
    EXPECT_EQ(chunk->bits_per_dim, alone->bits_per_dim);
  }
}

TEST(Evaluate, RangesOfPositionsAreTheirOwnTokens) {
  const std::vector<int64_t> lengths{5, 0, 1500, 3};
  const auto sequences = random_sequences(lengths);
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 0});
  const std::vector<int64_t> ends{1, 4, 1200, 2000};
  const auto result = evaluate(model, sequences, {.position_ends = ends}, nullptr);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->by_position.size(), ends.size() + 1);
  double bits = 0;
  for (size_t r = 0; r <= ends.size(); ++r) {
    const PositionScore& range = result->by_position[r];
    EXPECT_EQ(range.begin, r == 0 ? 0 : ends[r - 1]);
    EXPECT_EQ(range.end, r < ends.size() ? ends[r] : 2000);
    bits += range.bits_per_dim * static_cast<double>(range.counted_tokens);
    // The same by masks of the range.
    std::vector<std::vector<uint8_t>> masks;
    int64_t tokens = 0;
    for (const int64_t length : lengths) {
      auto& mask = masks.emplace_back(static_cast<size_t>(length), uint8_t{0});
      for (int64_t t = range.begin; t < std::min(length, range.end); ++t, ++tokens) {
        mask[static_cast<size_t>(t)] = 1;
      }
    }
    EXPECT_EQ(range.counted_tokens, tokens);
    if (tokens == 0) continue;
    const auto masked = evaluate(model, sequences, {.counted = masks}, nullptr);
    EXPECT_NEAR(range.bits_per_dim, masked->bits_per_dim, 1e-12 * masked->bits_per_dim);
  }
  EXPECT_NEAR(bits, result->bits_per_dim * 1508, 1e-9);
  EXPECT_TRUE(evaluate(model, sequences, {}, nullptr)->by_position.empty());
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{0}, {4, 4}, {8, 2}}) {
    EXPECT_FALSE(evaluate(model, sequences, {.position_ends = wrong}, nullptr).ok());
  }
}

TEST(Evaluate, NamesWhatIsWrong) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 5});
  const auto error = [&](const std::vector<Tokens>& sequences, int64_t batch = 8) {
    const auto result = evaluate(model, sequences, {.batch = batch}, nullptr);
    return result.ok() ? std::string("no error") : result.error().to_string();
  };
  EXPECT_EQ(error({}), "there is no token to evaluate");
  EXPECT_EQ(error({{}, {}}), "there is no token to evaluate");
  EXPECT_EQ(error({{1}}, 0), "batch is 0, must be at least 1");
  EXPECT_EQ(error({{1}, {1, 2, 3, 4, 5, 6}}),
            "sequence 1: has 6 tokens, the model takes at most 5");
  EXPECT_EQ(error({{1}, {1, 11}}), "sequence 1: token 1 is 11, must be in [0, 11)");
  EXPECT_EQ(error({{1, -1}}), "sequence 0: token 1 is -1, must be in [0, 11)");
  const auto mask_error = [&](const std::vector<std::vector<uint8_t>>& masks) {
    const std::vector<Tokens> sequences{{1}, {1, 2}};
    const auto result = evaluate(model, sequences, {.counted = masks}, nullptr);
    return result.ok() ? std::string("no error") : result.error().to_string();
  };
  EXPECT_EQ(mask_error({{1}}), "there are 1 masks for 2 sequences");
  EXPECT_EQ(mask_error({{1}, {1}}), "sequence 1: has 2 tokens and a mask of 1");
  EXPECT_EQ(mask_error({{0}, {0, 0}}), "there is no token to evaluate");
  EXPECT_EQ(mask_error({{0}, {0, 1}}), "no error");
}

TEST(Evaluate, LargeBatchesAreCutIntoPassesWithTheSameBits) {
  const auto sequences = random_sequences(std::vector<int64_t>(200, 60));
  const auto model = tiny_model(causal_stacks(true).back().layers);
  for (const auto form : {mixers::Form::kChunk, mixers::Form::kParallel, mixers::Form::kStep}) {
    std::vector<int64_t> passes;
    const auto record = [&](int64_t done, int64_t) { passes.push_back(done); };
    const EvaluateOptions large{.batch = 65'536, .form = form, .progress = record};
    const auto result = evaluate(model, sequences, large, nullptr);
    ASSERT_TRUE(result.ok());
    if (form != mixers::Form::kStep) {
      EXPECT_GE(passes.size(), 2u) << "12,000 rows are more than one pass";
    }
    EXPECT_EQ(passes.back(), 200);
    const auto small = evaluate(model, sequences, {.batch = 1, .form = form}, nullptr);
    EXPECT_EQ(result->bits_per_dim, small->bits_per_dim);
    EXPECT_EQ(result->standard_error, small->standard_error);
  }
}

TEST(Evaluate, StopsWithinASequence) {
  const auto sequences = random_sequences({1'500'000});
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 0});
  for (const auto form : {mixers::Form::kChunk, mixers::Form::kStep}) {
    std::atomic<bool> cancel{false};
    std::thread watcher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      cancel.store(true);
    });
    const auto result = evaluate(model, sequences, {.form = form, .cancel = &cancel}, nullptr);
    watcher.join();
    ASSERT_FALSE(result.ok()) << "seconds of work were not stopped after 50 ms";
    EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  }
}

}  // namespace
}  // namespace tarn::runtime
