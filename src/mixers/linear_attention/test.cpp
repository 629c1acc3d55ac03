// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::linear_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("linear_attention", "test"); }

TEST(LinearAttention, EqualKeysGiveTheRunningMeanOfTheValues) {
  // q = k = 0: elu(0) + 1 = 1 in every channel, so every earlier token weighs the same.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 3, "value_dim": 1})");
  Problem problem = harness.make_problem({{6}, {}, 0}, 1, false);
  for (int64_t r = 0; r < 6; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[0] = row[1] = row[2] = row[3] = row[4] = row[5] = 0.0;
    row[6] = static_cast<double>(r + 1);
  }
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  for (int64_t r = 0; r < 6; ++r) {
    // mean of 1 … r + 1, times 3(r + 1) / (3(r + 1) + ε)
    const double mean = 0.5 * static_cast<double>(r + 2);
    EXPECT_NEAR(got.out[r], mean, mean * (1e-6 / 3.0 + 4.0 * 1.2e-7)) << r;
  }
}

TEST(LinearAttention, NegativeKeysStillWeigh) {
  // elu(x) + 1 = e^x > 0 for x < 0: the gradient does not vanish where relu's would.
  const Harness elu(definition(), R"({"num_heads": 1, "key_dim": 1})");
  const Harness relu(definition(), R"({"num_heads": 1, "key_dim": 1, "feature_map": "relu"})");
  for (const auto& [harness, vanishes] : {std::pair{&elu, false}, std::pair{&relu, true}}) {
    Problem problem = harness->make_problem({{1}, {}, 0}, 1, false);
    problem.inputs[0] = problem.inputs[1] = -1.0;
    problem.inputs[2] = 2.0;
    const Outcome<float> got = harness->run(definition().chunk, problem, 0);
    EXPECT_NEAR(got.out[0], vanishes ? 0.0 : 2.0, 2e-5);  // e^-2 / (e^-2 + 1e-6) · 2
    const auto gradient = harness->gradient(problem, {1.0f}, {});
    EXPECT_EQ(gradient.dinputs[2] == 0.0f, vanishes);
  }
}

TEST(LinearAttention, StateSizeIsWhatTheTableSays) {
  const Harness harness(definition(), R"({"num_heads": 8, "key_dim": 32})");
  EXPECT_EQ(harness.state_elements(0, 784), 8 * 32 * 32);
  EXPECT_EQ(harness.state_elements(1, 784), 8 * 32);
}

TEST(LinearAttention, CountsFourFlopsPerStateValueForwardAndTwelveBackward) {
  // 3 heads of 10 features by 5 values.
  const Harness harness(definition(), R"({"num_heads": 3, "key_dim": 4, "value_dim": 5,
                                          "feature_map": "favor", "num_features": 10})");
  const auto flops = [&](OpPass pass) { return definition().flops(*harness.config, pass, 7); };
  EXPECT_EQ(flops(OpPass::kForward), 4.0 * 3 * 10 * 5 * 7);
  EXPECT_EQ(flops(OpPass::kBackward), 12.0 * 3 * 10 * 5 * 7);
  EXPECT_EQ(flops(OpPass::kStep), 4.0 * 3 * 10 * 5);
}

TEST(LinearAttention, RefusesAnOddNumberOfRandomFeatures) {
  const auto json = parse_json(
      R"({"num_heads": 1, "key_dim": 4, "feature_map": "favor", "num_features": 5})", "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("num_features"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::linear_attention
