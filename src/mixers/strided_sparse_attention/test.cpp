// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::strided_sparse_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("strided_sparse_attention", "test"); }

/// Mean of the visible values 2^j per query, from zero queries.
std::vector<double> means(const std::vector<std::vector<int>>& visible) {
  std::vector<double> result;
  for (const std::vector<int>& keys : visible) {
    double sum = 0;
    for (const int key : keys) sum += 1 << key;
    result.push_back(sum / static_cast<double>(keys.size()));
  }
  return result;
}

void expect_visible(const char* config, const std::vector<std::vector<int>>& visible) {
  const Harness harness(definition(), config);
  const auto tokens = static_cast<int64_t>(visible.size());
  Problem problem = harness.make_problem({{tokens}, {}, 0}, 1, true);
  for (int64_t r = 0; r < tokens; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[0] = row[1] = 0.0;
    row[4] = static_cast<double>(1 << r);
  }
  const std::vector<double> want = means(visible);
  const Outcome<float> chunk = harness.run(definition().chunk, problem, 0);
  const Outcome<float> steps = harness.run_steps(problem);
  const Outcome<double> reference = harness.reference(problem);
  for (size_t r = 0; r < want.size(); ++r) {
    EXPECT_NEAR(chunk.out[r], want[r], want[r] * 8.0 * 1.2e-7) << r;
    EXPECT_NEAR(steps.out[r], want[r], want[r] * 8.0 * 1.2e-7) << r;
    EXPECT_NEAR(reference.out[r], want[r], want[r] * 1e-14) << r;
  }
}

TEST(StridedSparseAttention, SeesNearTokensAndMultiplesOfTheStride) {
  expect_visible(R"({"num_heads": 1, "key_dim": 2, "value_dim": 1, "stride": 3})",
                 {{0},
                  {0, 1},
                  {0, 1, 2},
                  {0, 1, 2, 3},
                  {1, 2, 3, 4},
                  {2, 3, 4, 5},
                  {0, 3, 4, 5, 6},
                  {1, 4, 5, 6, 7}});
}

TEST(StridedSparseAttention, FixedSeesItsBlockAndTheColumnsBefore) {
  expect_visible(
      R"({"num_heads": 1, "key_dim": 2, "value_dim": 1, "stride": 3,
                     "pattern": "fixed", "columns": 1})",
      {{0}, {0, 1}, {0, 1, 2}, {2, 3}, {2, 3, 4}, {2, 3, 4, 5}, {2, 5, 6}, {2, 5, 6, 7}});
}

TEST(StridedSparseAttention, StrideOneIsSoftmaxAttention) {
  const MixerDef& softmax = **find_mixer("softmax_attention", "test");
  const Harness full(softmax, R"({"num_heads": 2, "key_dim": 5, "rotary_dim": 2})");
  const Harness sparse(definition(),
                       R"({"num_heads": 2, "key_dim": 5, "rotary_dim": 2, "stride": 1})");
  const Problem problem = full.make_problem({{90, 40}, {}, 1}, 3, false);
  const Outcome<double> want = full.reference(problem);
  EXPECT_LE(conformance::relative_error(sparse.run(definition().chunk, problem, 0).out, want.out),
            16.0 * 1.2e-7 * std::sqrt(95.0));
}

TEST(StridedSparseAttention, WorkFollowsTheVisibleKeys) {
  const Harness harness(definition(), R"({"num_heads": 3, "key_dim": 4, "value_dim": 5,
                                          "stride": 3})");
  const auto flops = [&](OpPass pass) { return definition().flops(*harness.config, pass, 8); };
  const double pairs = 1 + 2 + 3 + 4 + 4 + 4 + 5 + 5;
  EXPECT_EQ(flops(OpPass::kForward), 3 * pairs * (2 * 4 + 2 * 5));
  EXPECT_EQ(flops(OpPass::kBackward), 3 * pairs * (6 * 4 + 4 * 5));
  EXPECT_EQ(flops(OpPass::kStep), 3.0 * 5 * (2 * 4 + 2 * 5));
}

TEST(StridedSparseAttention, RefusesColumnsOfTheStridedPattern) {
  const auto json = parse_json(R"({"num_heads": 1, "key_dim": 4, "stride": 2, "columns": 1})", "c");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("columns"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::strided_sparse_attention
