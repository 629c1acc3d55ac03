// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"
#include "mixers/layer.h"

namespace tarn::mixers::selective_scan {
namespace {

using conformance::Gradients;
using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("selective_scan", "test"); }

/// Rows of the operator's inputs, in the order of its shape; a_log and d.
Problem problem_of(const Harness& harness, const std::vector<std::vector<double>>& rows,
                   const std::vector<double>& a_log, const std::vector<double>& d) {
  Problem problem = harness.make_problem({{static_cast<int64_t>(rows.size())}, {}, 0}, 1, true);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(),
              problem.inputs.begin() + static_cast<int64_t>(r) * problem.width);
  }
  problem.params = {a_log, d};
  return problem;
}

TEST(SelectiveScan, DecaysAtItsOwnRatesAndReadsWithC) {
  // Columns: x, delta, B (2), C (2). Rates −1 and −3.
  const Harness harness(definition(), R"({"inner_dim": 1, "state_dim": 2})");
  const Problem problem = problem_of(harness,
                                     {{2.0, 0.5, 1.0, 10.0, 1.0, 1.0},
                                      {4.0, 0.25, 0.0, 0.0, 1.0, 0.0},
                                      {0.0, 0.0, 7.0, 7.0, 0.0, 1.0}},
                                     {0.0, std::log(3.0)}, {100.0});
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  EXPECT_NEAR(got.out[0], 1.0 + 10.0 + 200.0, 1e-4);       // delta x B = (1, 10)
  EXPECT_NEAR(got.out[1], std::exp(-0.25) + 400.0, 1e-4);  // nothing is written
  EXPECT_NEAR(got.out[2], 10.0 * std::exp(-0.75), 1e-5);   // a step of length zero
  EXPECT_NEAR(got.state[0][0][0], std::exp(-0.25), 1e-6);
}

TEST(SelectiveScan, GradientOfALogGoesThroughTheRate) {
  const Harness harness(definition(), R"({"inner_dim": 1, "state_dim": 1})");
  const Problem problem =
      problem_of(harness, {{2.0, 0.5, 1.0, 1.0}, {0.0, 0.25, 0.0, 1.0}}, {std::log(3.0)}, {0.0});
  const Gradients got = harness.gradient(problem, {0.0f, 1.0f}, {});
  // y_2 = e^(0.25 A), A = −e^(a_log) = −3: dy/da_log = 0.25 A e^(0.25 A).
  EXPECT_NEAR(got.dparams[0][0], -0.75 * std::exp(-0.75), 1e-6);
  EXPECT_NEAR(got.dparams[1][0], 0.0, 1e-6);
}

TEST(SelectiveScan, StartsAsThePaperSays) {
  const auto json = parse_json(R"({"inner_dim": 40, "state_dim": 3})", "config");
  const auto config = *definition().parse_config(*json, 33, "mixer");
  bool found = false;
  for (const ParamSpec& spec : layer_params(definition(), *config)) {
    if (spec.name == "dt_proj.weight") {
      EXPECT_EQ(spec.shape, (std::vector<int64_t>{40, 3}));  // ceil(33 / 16)
    }
    if (spec.name != "a_log") continue;
    found = true;
    EXPECT_EQ(spec.init.kind, Init::Kind::kLogRamp);
    EXPECT_EQ(spec.init.scale, 1.0f);
    EXPECT_EQ(spec.init.high, 3.0f);
    EXPECT_EQ(spec.init.period, 3);
    EXPECT_FALSE(spec.weight_decay);
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace tarn::mixers::selective_scan
