// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::delta_rule {
namespace {

using conformance::Harness;
using conformance::Outcome;

const MixerDef& definition() { return **find_mixer("delta_rule", "test"); }

TEST(DeltaRule, AKeyWrittenAgainHoldsTheNewValueOnly) {
  // Columns: q (2), k (2), v, beta. Two orthogonal keys; the first is written twice.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 2, "value_dim": 1})");
  const double unit = std::sqrt(2.0);  // undoes K^(-1/2)
  const std::vector<std::vector<double>> rows = {{unit, 0.0, 0.6, 0.8, 5.0, 1.0},
                                                 {unit, 0.0, -0.8, 0.6, 7.0, 1.0},
                                                 {unit * 0.6, unit * 0.8, 0.6, 0.8, -2.0, 1.0},
                                                 {unit * -0.8, unit * 0.6, 0.6, 0.8, 4.0, 0.5}};
  const Outcome<float> got = harness.run_rows(rows);
  EXPECT_NEAR(got.out[2], -2.0, 1e-5);  // 5 is gone
  EXPECT_NEAR(got.out[3], 7.0, 1e-5);   // the other key was not touched
  const double first = 0.6 * static_cast<double>(got.state[0][0][0]);
  EXPECT_NEAR(first + 0.8 * static_cast<double>(got.state[0][0][1]), 1.0, 1e-5);  // half way to 4
}

}  // namespace
}  // namespace tarn::mixers::delta_rule
