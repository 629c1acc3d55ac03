// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include "conformance/harness.h"

namespace tarn::mixers::compressive_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("compressive_attention", "test"); }

/// Zero queries, so that every visible entry has the same weight; token t has the value 2^t.
Problem powers(const Harness& harness, int64_t tokens) {
  Problem problem = harness.make_problem({{tokens}, {}, 0}, 1, true);
  for (int64_t r = 0; r < tokens; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[0] = row[1] = 0.0;
    row[4] = static_cast<double>(1 << r);
  }
  return problem;
}

void expect_outputs(const Harness& harness, const Problem& problem,
                    const std::vector<double>& want) {
  for (const Outcome<float>& got :
       {harness.run(definition().chunk, problem, 0), harness.run_steps(problem)}) {
    for (size_t r = 0; r < want.size(); ++r) {
      EXPECT_NEAR(got.out[r], want[r], want[r] * 8.0 * 1.2e-7) << r;
    }
  }
}

TEST(CompressiveAttention, ABlockBecomesAnEntryWhenItLeavesTheWindow) {
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 2, "value_dim": 1,
      "window": 2, "compression": 2, "memory": 1})");
  // Blocks {0, 1}, {2, 3}, … become 1.5, 6, 24 at tokens 3, 5, 7; one entry is kept.
  expect_outputs(harness, powers(harness, 8),
                 {1, 3.0 / 2, 7.0 / 3, (1.5 + 4 + 8) / 3, (1.5 + 4 + 8 + 16) / 4,
                  (6.0 + 16 + 32) / 3, (6.0 + 16 + 32 + 64) / 4, (24.0 + 64 + 128) / 3});
}

TEST(CompressiveAttention, MaximumAndConvolutionPoolAsTheySay) {
  const std::string base = R"({"num_heads": 1, "key_dim": 2, "value_dim": 1, "window": 1,
      "compression": 2, "memory": 4, "pooling": )";
  const Harness largest(definition(), base + "\"max\"}");
  expect_outputs(largest, powers(largest, 5),
                 {1, 3.0 / 2, (2.0 + 4) / 2, (2.0 + 4 + 8) / 3, (2.0 + 8 + 16) / 3});
  const Harness learned(definition(), base + "\"convolution\"}");
  Problem problem = powers(learned, 5);
  ASSERT_EQ(problem.params.size(), 2u);
  problem.params[0] = {0, 0, 0, 0};
  problem.params[1] = {3, 0.5};
  expect_outputs(learned, problem,
                 {1, 3.0 / 2, (4.0 + 4) / 2, (4.0 + 4 + 8) / 3, (4.0 + 16 + 16) / 3});
}

TEST(CompressiveAttention, CompressionOfOneKeepsAllTokens) {
  const MixerDef& softmax = **find_mixer("softmax_attention", "test");
  const Harness full(softmax, R"({"num_heads": 4, "num_kv_heads": 2, "key_dim": 5})");
  const Harness compressed(definition(), R"({"num_heads": 4, "num_kv_heads": 2, "key_dim": 5,
      "window": 10, "compression": 1, "memory": 80})");
  const Problem problem = full.make_problem({{90, 40}, {}, 1}, 3, false);
  const Outcome<double> want = full.reference(problem);
  EXPECT_LE(
      conformance::relative_error(compressed.run(definition().chunk, problem, 0).out, want.out),
      16.0 * 1.2e-7 * 10.0);
}

TEST(CompressiveAttention, RefusesAnUnknownPooling) {
  const auto json = parse_json(R"({"num_heads": 1, "key_dim": 4, "window": 2, "compression": 2,
                                   "memory": 2, "pooling": "median"})",
                               "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("pooling"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::compressive_attention
