#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/state.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

using Tokens = std::vector<int32_t>;

const std::string kMixture =
    R"({"kind": "discretised_logistic_mixture", "components": 3, "levels": 11})";

TEST(Generate, SameTokensForAnyBatchAndThreads) {
  for (const std::string& head : {TinyOptions{}.head, kMixture}) {
    for (const NamedMixers& stack : causal_stacks(true)) {
      SCOPED_TRACE(stack.name);
      const auto model = tiny_model(stack.layers, {.head = head});
      GenerateOptions options{.count = 9, .batch = 1, .length = 40, .seed = 3};
      options.prompts.resize(9);
      for (size_t i = 0; i < 9; ++i) options.prompts[i].assign(i, static_cast<int32_t>(i));
      const auto expected = generate(model, options, nullptr);
      ASSERT_TRUE(expected.ok());
      ASSERT_EQ(expected->tokens.size(), 9u);
      EXPECT_NE(expected->tokens[0], expected->tokens[1]);
      for (size_t i = 0; i < 9; ++i) {
        ASSERT_EQ(expected->tokens[i].size(), 40u);
        for (size_t t = 0; t < i; ++t) EXPECT_EQ(expected->tokens[i][t], static_cast<int32_t>(i));
      }
      for (const int threads : {1, 2, 5}) {
        for (const int64_t batch : {2, 9, 64}) {
          ThreadPool pool(threads);
          options.batch = batch;
          const auto result = generate(model, options, &pool);
          ASSERT_TRUE(result.ok());
          EXPECT_EQ(result->tokens, expected->tokens) << threads << " threads, batch " << batch;
          EXPECT_EQ(result->generated_tokens, 9 * 40 - 36);
        }
      }
    }
  }
}

TEST(Generate, ManyClassesAreDrawnByAllThreadsAlike) {
  // 8 sequences of 4,096 classes are enough work for the threads to share the drawing.
  const TinyOptions large{.head = R"({"kind": "categorical", "classes": 4096})",
                          .vocabulary = 4097};
  const auto model = tiny_model(causal_stacks(true).front().layers, large);
  const GenerateOptions options{.count = 8, .batch = 8, .length = 12, .seed = 3};
  const auto expected = generate(model, options, nullptr);
  ASSERT_TRUE(expected.ok());
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    const auto result = generate(model, options, &pool);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->tokens, expected->tokens);
  }
}

TEST(Generate, RecurrentEqualsRecomputedPrefixes) {
  // Greedy: the two forms differ by rounding, and a tie within rounding is not to be expected.
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    GenerateOptions options{.count = 5, .batch = 3, .length = 60, .sampler = {.greedy = true}};
    options.prompts = {{1}, {2, 3}, {}, {4, 5, 6, 7}, {8}};
    const auto recurrent = generate(model, options, nullptr);
    options.mode = GenerateMode::kParallel;
    const auto recomputed = generate(model, options, nullptr);
    ASSERT_TRUE(recurrent.ok());
    ASSERT_TRUE(recomputed.ok());
    EXPECT_EQ(recurrent->tokens, recomputed->tokens);
    EXPECT_EQ(recurrent->generated_tokens, 5 * 60 - 8);
    EXPECT_EQ(recomputed->generated_tokens, 5 * 60 - 8);
    EXPECT_EQ(recurrent->state_bytes_per_sequence, SequenceState::used_bytes_at(*model, 60));
    EXPECT_EQ(recomputed->state_bytes_per_sequence, 0);
    EXPECT_GT(recurrent->ms_per_token_first, 0.0);
    EXPECT_GT(recurrent->ms_per_token_last, 0.0);
  }
}

TEST(Generate, DefaultsToTheModelsLengthAndOnePromptServesAll) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 20});
  const auto result = generate(model, {.count = 3, .batch = 2, .prompts = {{7, 7, 7}}}, nullptr);
  ASSERT_TRUE(result.ok());
  for (const Tokens& tokens : result->tokens) {
    EXPECT_EQ(tokens.size(), 20u);
    EXPECT_EQ(Tokens(tokens.begin(), tokens.begin() + 3), (Tokens{7, 7, 7}));
  }
  EXPECT_EQ(result->steps, 2 * 17);
}

TEST(Generate, PromptOfFullLengthGeneratesNothing) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 4});
  const auto result = generate(model, {.prompts = {{1, 2, 3, 4}}}, nullptr);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens[0], (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(result->generated_tokens, 0);
}

TEST(Generate, IntegratesTimesOfChosenPrefixes) {
  const auto model = tiny_model(causal_stacks(true).back().layers);
  GenerateOptions options{.count = 6, .batch = 2, .length = 90};
  options.mode = GenerateMode::kParallel;
  options.positions_to_time = {90, 1, 45, 45};
  const auto result = generate(model, options, nullptr);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->integrated);
  EXPECT_TRUE(result->tokens.empty());
  ASSERT_EQ(result->timed.size(), 3u);
  const auto& timed = result->timed;
  EXPECT_EQ(timed[0].prefix, 1);
  EXPECT_EQ(timed[2].prefix, 90);
  double sum = 0.0;  // of the straight lines at every prefix, times three batches
  for (int64_t n = 1; n <= 90; ++n) {
    const auto& a = n <= 45 ? timed[0] : timed[1];
    const auto& b = n <= 45 ? timed[1] : timed[2];
    const double share =
        static_cast<double>(n - a.prefix) / static_cast<double>(b.prefix - a.prefix);
    sum += a.seconds * (1.0 - share) + b.seconds * share;
  }
  EXPECT_NEAR(result->seconds, 3.0 * sum, 1e-12 * sum);
  EXPECT_EQ(result->generated_tokens, 6 * 90);
  EXPECT_EQ(result->ms_per_token_last, 1e3 * timed[2].seconds / 2.0);
}

TEST(Generate, TimesStepsOfStatesThatWereNeverFilled) {
  for (const NamedMixers& stack : causal_stacks(true)) {
    const auto model = tiny_model(stack.layers);
    GenerateOptions options{.count = 4, .batch = 2, .length = 90};
    options.positions_to_time = {1, 90};
    const auto result = generate(model, options, nullptr);
    ASSERT_TRUE(result.ok()) << stack.name << ": " << result.error().to_string();
    EXPECT_TRUE(result->integrated);
    ASSERT_EQ(result->timed.size(), 2u);
    EXPECT_EQ(result->timed[1].prefix, 90);
    const double mean = (result->timed[0].seconds + result->timed[1].seconds) / 2;
    EXPECT_NEAR(result->seconds, 2 * 90 * mean, 1e-9 * result->seconds);
    EXPECT_EQ(result->generated_tokens, 4 * 90);
    EXPECT_EQ(result->state_bytes_per_sequence, SequenceState::used_bytes_at(*model, 90));
  }
}

TEST(Generate, CountsProgressAndStopsOnRequest) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 20});
  int64_t last = 0;
  GenerateOptions options{.count = 5, .batch = 2};
  options.progress = [&](int64_t done, int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, 100);
    last = done;
  };
  ASSERT_TRUE(generate(model, options, nullptr).ok());
  EXPECT_EQ(last, 100);
  std::atomic<bool> stop = false;
  options.cancel = &stop;
  options.progress = [&](int64_t done, int64_t) { stop = done >= 30; };
  const auto stopped = generate(model, options, nullptr);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
}

TEST(Generate, RefusesWhatCannotBe) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 20});
  const auto error = [&](const GenerateOptions& options) {
    const auto result = generate(model, options, nullptr);
    return result.ok() ? std::string("no error") : result.error().to_string();
  };
  EXPECT_EQ(error({.count = 0}), "count is 0, must be at least 1");
  EXPECT_EQ(error({.count = -1}), "count is -1, must be at least 1");
  EXPECT_EQ(error({.batch = 0}), "batch is 0, must be at least 1");
  EXPECT_EQ(error({.length = -5}), "length is -5, must be at least 1");
  EXPECT_EQ(error({.length = 21}), "length is 21, must be at most the model's max_tokens, 20");
  EXPECT_EQ(error({.sampler = {.temperature = 0.0f}}).find("temperature is 0"), 0u);
  EXPECT_EQ(error({.prompts = {Tokens(21, 1)}}),
            "prompt 0: has 21 tokens, the sequence is to have 20");
  EXPECT_EQ(error({.prompts = {{1, 12}}}), "prompt 0: token 1 is 12, must be in [0, 12)");
  EXPECT_EQ(error({.count = 3, .prompts = {{1}, {2}}}),
            "there are 2 prompts for 3 sequences, there must be none, one or one for each");
  for (const int64_t position : {0, 21}) {
    EXPECT_NE(error({.mode = GenerateMode::kParallel, .positions_to_time = {position}})
                  .find("must be in [1, 20]"),
              std::string::npos);
  }
}

TEST(Generate, AsksForMemoryBeforeItTakesIt) {
  const auto model = tiny_model(causal_stacks(true).back().layers, {.max_tokens = 0});
  EXPECT_FALSE(generate(model, GenerateOptions{}, nullptr).ok());  // no length anywhere
  for (const GenerateOptions& options :
       {GenerateOptions{.count = 1'000'000'000'000, .length = 100},
        GenerateOptions{.length = 1'000'000'000'000},
        GenerateOptions{.count = INT64_MAX, .batch = INT64_MAX, .length = INT64_MAX},
        GenerateOptions{.count = 100, .batch = 100, .length = 100, .memory_limit_bytes = 10'000},
        // No state: the activations of 100 rows of at least 48 floats.
        GenerateOptions{
            .length = 100, .mode = GenerateMode::kParallel, .memory_limit_bytes = 19'200}}) {
    const auto result = generate(model, options, nullptr);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kResource);
  }
  for (const auto mode : {GenerateMode::kRecurrent, GenerateMode::kParallel}) {
    const GenerateOptions fits{.length = 100, .mode = mode, .memory_limit_bytes = 1 << 20};
    EXPECT_TRUE(generate(model, fits, nullptr).ok());
  }
}

}  // namespace
}  // namespace tarn::runtime
