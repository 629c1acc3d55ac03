// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::state_space_dual {
namespace {

using conformance::Harness;
using conformance::Outcome;

const MixerDef& definition() { return **find_mixer("state_space_dual", "test"); }

TEST(StateSpaceDual, AStepOfLengthZeroChangesNothing) {
  // Columns: C, B, x, g, dt of one head and one state.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 1, "value_dim": 1})");
  const std::vector<std::vector<double>> rows = {
      {1.0, 2.0, 3.0, -0.5, 0.5}, {1.0, 7.0, 9.0, 0.0, 0.0}, {1.0, 0.0, 0.0, std::log(0.25), 1.0}};
  const Outcome<float> got = harness.run_rows(rows);
  EXPECT_NEAR(got.out[0], 3.0, 1e-6);  // dt x B = 0.5 * 3 * 2
  EXPECT_EQ(got.out[1], got.out[0]);
  EXPECT_NEAR(got.out[2], 0.75, 1e-6);
}

TEST(StateSpaceDual, RefusesGroupsThatDoNotDivide) {
  const auto json = parse_json(R"({"num_heads": 4, "num_groups": 3, "key_dim": 5})", "config");
  const auto parsed = definition().parse_config(*json, 16, "mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("num_groups"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::state_space_dual
