// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::softmax_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("softmax_attention", "test"); }

TEST(SoftmaxAttention, ZeroQueriesGiveTheRunningMean) {
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 2, "value_dim": 1})");
  Problem problem = harness.make_problem({{5}, {}, 0}, 1, false);
  for (int64_t r = 0; r < 5; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[0] = row[1] = 0.0;
    row[4] = static_cast<double>(r + 1);
  }
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  for (int64_t r = 0; r < 5; ++r) {
    const double mean = 0.5 * static_cast<double>(r + 2);
    EXPECT_NEAR(got.out[r], mean, mean * 8.0 * 1.2e-7) << r;
  }
}

TEST(SoftmaxAttention, GroupedQueriesEqualRepeatedKeyHeads) {
  const Harness grouped(definition(), R"({"num_heads": 4, "num_kv_heads": 2, "key_dim": 3})");
  const Harness full(definition(), R"({"num_heads": 4, "key_dim": 3})");
  const Problem problem = grouped.make_problem({{9}, {}, 0}, 3, false);
  Problem repeated = full.make_problem({{9}, {}, 0}, 3, false);
  for (int64_t r = 0; r < 9; ++r) {
    const double* from = problem.inputs.data() + r * problem.width;
    double* to = repeated.inputs.data() + r * repeated.width;
    std::copy_n(from, 12, to);
    for (int64_t h = 0; h < 4; ++h) {
      std::copy_n(from + 12 + (h / 2) * 3, 3, to + 12 + h * 3);
      std::copy_n(from + 18 + (h / 2) * 3, 3, to + 24 + h * 3);
    }
  }
  EXPECT_TRUE(conformance::same_bits(grouped.run(definition().chunk, problem, 0).out,
                                     full.run(definition().chunk, repeated, 0).out));
}

TEST(SoftmaxAttention, RotationDependsOnRelativePositionOnly) {
  // Same q and k at every token: the score of a pair depends on the distance alone, so shifting
  // the whole sequence by a prefix of equal tokens with a value of zero weight changes nothing.
  const Harness harness(definition(),
                        R"({"num_heads": 1, "key_dim": 4, "value_dim": 1, "rotary_dim": 4})");
  Problem first = harness.make_problem({{1}, {}, 0}, 5, true);
  Problem later = harness.make_problem({{1}, {1000}, 0}, 5, true);
  // One token alone: attends to itself with weight 1 wherever it stands.
  const Outcome<float> alone = harness.run(definition().chunk, first, 0);
  EXPECT_FLOAT_EQ(alone.out[0], static_cast<float>(first.inputs[8]));
  const Outcome<double> want = harness.reference(later);
  const Outcome<float> got = harness.run(definition().step, later, 0);
  EXPECT_LE(conformance::relative_error(got.out, want.out), 64.0 * 1.2e-7 * std::sqrt(1001.0));
}

TEST(SoftmaxAttention, CountsFlopsOfEveryPairOfQueryAndKey) {
  for (const bool causal : {true, false}) {
    const Harness harness(definition(), causal ? R"({"num_heads": 3, "key_dim": 4, "value_dim": 5})"
                                               : R"({"num_heads": 3, "key_dim": 4, "value_dim": 5,
                                                     "causal": false})");
    const auto flops = [&](OpPass pass) { return definition().flops(*harness.config, pass, 7); };
    const double pairs = causal ? 1 + 2 + 3 + 4 + 5 + 6 + 7 : 7 * 7;
    EXPECT_EQ(flops(OpPass::kForward), 3 * pairs * (2 * 4 + 2 * 5));
    EXPECT_EQ(flops(OpPass::kBackward), 3 * pairs * (6 * 4 + 4 * 5));
    EXPECT_EQ(flops(OpPass::kStep), 3.0 * 8 * (2 * 4 + 2 * 5));
  }
}

TEST(SoftmaxAttention, RefusesHeadsThatDoNotDivide) {
  const auto json = parse_json(R"({"num_heads": 4, "num_kv_heads": 3, "key_dim": 4})", "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("num_kv_heads"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::softmax_attention
