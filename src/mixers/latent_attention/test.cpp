// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::latent_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("latent_attention", "test"); }

TEST(LatentAttention, OneLatentIsTheWeightedMeanOfTheTokens) {
  const Harness harness(definition(), R"({"num_heads": 1, "num_latents": 1, "key_dim": 1,
                                          "value_dim": 1, "scale": 1.0})");
  Problem problem = harness.make_problem({{3}, {}, 0}, 1, true);
  problem.params[0] = {std::log(2.0)};
  for (int64_t r = 0; r < 3; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[1] = static_cast<double>(r);           // weights 1, 2, 4
    row[2] = static_cast<double>(10 * r + 1);  // values 1, 11, 21
  }
  const double want[] = {1.0, 23.0 / 3.0, 107.0 / 7.0};
  for (const Outcome<float>& got :
       {harness.run(definition().chunk, problem, 0), harness.run_steps(problem)}) {
    for (size_t r = 0; r < 3; ++r) EXPECT_NEAR(got.out[r], want[r], want[r] * 8.0 * 1.2e-7) << r;
    EXPECT_NEAR(got.state[0][0][0], std::log(7.0), 4e-7);
    EXPECT_NEAR(got.state[1][0][0], 10.0 / 7.0, 4e-7);
  }
}

TEST(LatentAttention, TokensReadTheLatentWhoseKeyTheyMatch) {
  const Harness harness(definition(), R"({"num_heads": 1, "num_latents": 2, "key_dim": 2,
                                          "value_dim": 1, "scale": 1.0, "causal": false})");
  Problem problem = harness.make_problem({{2}, {}, 0}, 1, false);
  // Latent 0 looks for keys (1, 0), latent 1 for (0, 1), both sharply; token 0 asks for the second.
  problem.params[0] = {60, 0, 0, 60};
  const double rows[2][5] = {{0, 60, 1, 0, 5}, {60, 0, 0, 1, -3}};
  for (int64_t r = 0; r < 2; ++r) {
    std::copy_n(rows[r], 5, problem.inputs.data() + r * problem.width);
  }
  const Outcome<float> got = harness.run(definition().parallel, problem, 0);
  EXPECT_NEAR(got.out[0], -3.0, 1e-5);
  EXPECT_NEAR(got.out[1], 5.0, 1e-5);
}

TEST(LatentAttention, ScoresThatJumpByThousandsLoseNothing) {
  const Harness harness(definition(), R"({"num_heads": 1, "num_latents": 3, "key_dim": 2,
                                          "value_dim": 2, "scale": 1.0})");
  Problem problem = harness.make_problem({{40}, {}, 0}, 9, true);
  for (int64_t r = 0; r < 40; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[2] *= r % 7 == 0 ? 3000.0 : 1.0;
  }
  const Outcome<double> want = harness.reference(problem);
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  for (const float value : got.out) EXPECT_TRUE(std::isfinite(value));
  EXPECT_LE(conformance::relative_error(got.state[2][0], want.state[2][0]), 32.0 * 1.2e-7 * 3000.0);
}

TEST(LatentAttention, RefusesNoLatents) {
  const auto json = parse_json(R"({"num_heads": 1, "key_dim": 4, "num_latents": 0})", "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("num_latents"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::latent_attention
