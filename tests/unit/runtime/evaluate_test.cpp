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
