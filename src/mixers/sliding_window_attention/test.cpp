// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/harness.h"

namespace tarn::mixers::sliding_window_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("sliding_window_attention", "test"); }

TEST(SlidingWindowAttention, ZeroQueriesGiveTheMeanOfWindowAndSinks) {
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 2, "value_dim": 1,
                                          "window": 3, "sinks": 2})");
  Problem problem = harness.make_problem({{7}, {}, 0}, 1, true);
  for (int64_t r = 0; r < 7; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[0] = row[1] = 0.0;
    row[4] = static_cast<double>(1 << r);  // any sum of values tells which they are
  }
  // Visible values: 1; 1 2; 1 2 4; 1 2 4 8; 1 2 4 8 16; then 4 falls out, then 8.
  const double want[] = {1, 3.0 / 2, 7.0 / 3, 15.0 / 4, 31.0 / 5, 59.0 / 5, 115.0 / 5};
  const Outcome<float> chunk = harness.run(definition().chunk, problem, 0);
  const Outcome<float> steps = harness.run_steps(problem);
  for (int64_t r = 0; r < 7; ++r) {
    EXPECT_NEAR(chunk.out[r], want[r], want[r] * 8.0 * 1.2e-7) << r;
    EXPECT_NEAR(steps.out[r], want[r], want[r] * 8.0 * 1.2e-7) << r;
  }
  // Values of the slots: sinks 0 and 1, then tokens 6, 4, 5.
  const std::vector<float> slots = {1, 2, 64, 16, 32};
  EXPECT_EQ(chunk.state[1][0], slots);
  EXPECT_EQ(steps.state[1][0], slots);
}

TEST(SlidingWindowAttention, AWindowOverAllTokensIsSoftmaxAttention) {
  const MixerDef& softmax = **find_mixer("softmax_attention", "test");
  const char* base = R"({"num_heads": 4, "num_kv_heads": 2, "key_dim": 6, "rotary_dim": 4)";
  const Harness full(softmax, std::string(base) + "}");
  const Harness window(definition(), std::string(base) + R"(, "window": 90, "sinks": 3})");
  const Problem problem = full.make_problem({{90, 40}, {}, 1}, 3, false);
  EXPECT_TRUE(conformance::same_bits(window.run(definition().chunk, problem, 0).out,
                                     full.run(softmax.chunk, problem, 0).out));
}

TEST(SlidingWindowAttention, ForgetsWhatLeftTheWindow) {
  const Harness harness(definition(), R"({"num_heads": 2, "key_dim": 4, "window": 5, "sinks": 1})");
  const Problem problem = harness.make_problem({{40}, {}, 0}, 5, true);
  const auto changed = [&](int64_t token) {
    Problem other = problem;
    other.inputs[static_cast<size_t>(token * problem.width + 17)] += 1.0;  // a value
    const Outcome<float> was = harness.run(definition().chunk, problem, 0);
    const Outcome<float> is = harness.run(definition().chunk, other, 0);
    std::vector<int64_t> rows;
    for (int64_t r = 0; r < 40; ++r) {
      const auto first = static_cast<int64_t>(r * harness.out_width());
      if (!std::equal(was.out.begin() + first, was.out.begin() + first + harness.out_width(),
                      is.out.begin() + first)) {
        rows.push_back(r);
      }
    }
    return rows;
  };
  EXPECT_EQ(changed(20), (std::vector<int64_t>{20, 21, 22, 23, 24}));
  EXPECT_EQ(changed(0).size(), 40u);
}

TEST(SlidingWindowAttention, RefusesAWindowOfNothing) {
  const auto json = parse_json(R"({"num_heads": 4, "key_dim": 4, "window": 0})", "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("window"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::sliding_window_attention
