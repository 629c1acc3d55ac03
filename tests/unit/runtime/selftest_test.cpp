#include "runtime/selftest.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <thread>

#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

TEST(CompareForms, FormsAgreeToRounding) {
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    const auto result = compare_forms(model, 96, 4, nullptr);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->tokens, 96);
    // Two layers of norms, products and an operator over 96 tokens: a few hundred roundings.
    EXPECT_LE(result->max_row_error(), 500.0 * kEpsilon);
    EXPECT_LE(result->max_error(), result->max_row_error());
    EXPECT_LE(result->step_parallel.norm_error, 100.0 * kEpsilon);
  }
}

TEST(CompareForms, SaysWhereTwoFormsAreTheSameCode) {
  for (const NamedMixers& stack : causal_stacks()) {
    SCOPED_TRACE(stack.name);
    const auto model = tiny_model(stack.layers);
    bool other = false;
    for (const model::LayerConfig& layer : model->config().layers) {
      other |= layer.mixer->parallel != nullptr && layer.mixer->parallel != layer.mixer->chunk;
    }
    EXPECT_EQ(compare_forms(model, 20, 4, nullptr)->chunk_parallel.has_value(), other);
    // Beyond a chunk of 1,024 tokens the state is carried over: not the same computation.
    const auto longer = tiny_model(stack.layers, {.max_tokens = 0});
    EXPECT_TRUE(compare_forms(longer, 1030, 4, nullptr)->chunk_parallel.has_value());
  }
}

TEST(CompareForms, RefusesBadCounts) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 10});
  EXPECT_FALSE(compare_forms(model, 0, 1, nullptr).ok());
  EXPECT_FALSE(compare_forms(model, 11, 1, nullptr).ok());
  EXPECT_FALSE(compare_forms(model, -1, 1, nullptr).ok());
}

TEST(CompareForms, IsStopped) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.max_tokens = 0});
  std::atomic<bool> cancel{true};
  const auto none = compare_forms(model, 8, 1, nullptr, &cancel);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kCancelled);
  // Raised on the way: a step form of 500,000 tokens is seconds of work.
  cancel.store(false);
  std::thread watcher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cancel.store(true);
  });
  const auto some = compare_forms(model, 500'000, 1, nullptr, &cancel);
  watcher.join();
  ASSERT_FALSE(some.ok());
  EXPECT_EQ(some.error().code, ErrorCode::kCancelled);
}

TEST(LongRun, IsStoppedBeforeItsFirstToken) {
  std::atomic<bool> cancel{true};
  LongRunOptions options;
  options.tokens = 1;  // no window ever ends before the flag is seen
  options.cancel = &cancel;
  int64_t windows = 0;
  options.progress = [&](int64_t, int64_t) { ++windows; };
  const auto result = long_run_check(*mixers::all_mixers().front(), options);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(windows, 0);
}

TEST(LongRun, StepFollowsTheDoubleReferenceInConstantMemory) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (mixer->step == nullptr) continue;  // no operator, or whole sequences only
    SCOPED_TRACE(mixer->name);
    const int64_t tokens = mixer->bounded_state ? 20'500 : 1'500;
    int64_t last = 0;
    LongRunOptions options{.tokens = tokens};
    options.progress = [&](int64_t done, int64_t) { last = done; };
    const auto result = long_run_check(*mixer, options);
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(last, tokens);
    EXPECT_EQ(result->tokens, tokens);
    // Sums of n terms of one sign lose at most n·eps, about sqrt(n)·eps in practice.
    const double bound = 20.0 * kEpsilon * std::sqrt(static_cast<double>(tokens));
    EXPECT_LE(result->norm_error, bound);
    EXPECT_LE(result->last_window_error, bound);
    EXPECT_GT(result->norm_error, 0.0);
    EXPECT_GT(result->us_per_token_first, 0.0);
    EXPECT_GT(result->us_per_token_last, 0.0);
    if (mixer->bounded_state && !kSanitized) {
      EXPECT_LT(result->resident_growth_bytes, int64_t{1} << 20);
    }
  }
}

TEST(LongRun, RefusesBadOptions) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (!mixers::has_operator(*mixer)) continue;
    SCOPED_TRACE(mixer->name);
    EXPECT_FALSE(long_run_check(*mixer, {.tokens = 0}).ok());
    EXPECT_FALSE(long_run_check(*mixer, {.tokens = -1}).ok());
    EXPECT_FALSE(long_run_check(*mixer, {.tokens = 10, .config = "{\"no_such_key\": 1}"}).ok());
    EXPECT_FALSE(long_run_check(*mixer, {.tokens = 10, .config = "{"}).ok());
    if (!mixer->bounded_state) {
      EXPECT_FALSE(long_run_check(*mixer, {.tokens = 1'000'000}).ok());
    }
  }
}

TEST(LongRun, ReportsResidentMemory) { EXPECT_GT(resident_bytes(), 0); }

}  // namespace
}  // namespace tarn::runtime
