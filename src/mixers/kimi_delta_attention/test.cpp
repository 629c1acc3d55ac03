// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::kimi_delta_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;

const MixerDef& definition() { return **find_mixer("kimi_delta_attention", "test"); }

TEST(KimiDeltaAttention, ForgetsOneChannelAndErasesFromTheRest) {
  // Columns: q (2), k (2), v, g (2), beta.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 2, "value_dim": 1})");
  const double unit = std::sqrt(2.0);  // undoes K^(-1/2)
  const std::vector<std::vector<double>> rows = {
      {unit, 0.0, 0.6, 0.8, 10.0, 0.0, 0.0, 1.0},     // S = (6, 8)
      {unit, 0.0, 0.6, 0.8, 0.0, 0.0, -200.0, 1.0}};  // S' = (6, 0): answers 3.6, erased
  const Outcome<float> got = harness.run_rows(rows);
  EXPECT_NEAR(got.out[0], 6.0, 1e-5);
  EXPECT_NEAR(got.state[0][0][0], 6.0 - 0.6 * 3.6, 1e-5);
  EXPECT_NEAR(got.state[0][0][1], -0.8 * 3.6, 1e-5);
}

}  // namespace
}  // namespace tarn::mixers::kimi_delta_attention
