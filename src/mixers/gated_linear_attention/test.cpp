// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::gated_linear_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;

const MixerDef& definition() { return **find_mixer("gated_linear_attention", "test"); }

TEST(GatedLinearAttention, EachChannelForgetsOnItsOwn) {
  // q and k name a channel each; the gates of the second token wipe channel 1 alone.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 2, "value_dim": 1})");
  const double unit = std::sqrt(2.0);  // undoes K^(-1/2)
  const std::vector<std::vector<double>> rows = {
      {0.0, 0.0, 1.0, 1.0, 3.0, 0.0, 0.0},           // writes 3 into both channels
      {unit, 0.0, 0.0, 0.0, 9.0, 0.0, -100.0},       // reads channel 0
      {0.0, unit, 0.0, 0.0, 9.0, std::log(0.5), 0},  // reads channel 1, halves channel 0
      {unit, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0}};
  const Outcome<float> got = harness.run_rows(rows);
  EXPECT_NEAR(got.out[1], 3.0, 1e-6);
  EXPECT_EQ(got.out[2], 0.0f);
  EXPECT_NEAR(got.out[3], 1.5, 1e-6);
}

}  // namespace
}  // namespace tarn::mixers::gated_linear_attention
