// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::gru {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

constexpr double kOpen = 50.0;

const MixerDef& definition() { return **find_mixer("gru", "test"); }

/// Rows of gates r, z, n of one channel; the recurrent weight and bias.
Outcome<float> run(const std::vector<std::vector<double>>& rows,
                   const std::vector<std::vector<double>>& params) {
  const Harness harness(definition(), R"({"hidden_dim": 1})");
  Problem problem = harness.make_problem({{static_cast<int64_t>(rows.size())}, {}, 0}, 1, true);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(),
              problem.inputs.begin() + static_cast<int64_t>(r) * problem.width);
  }
  problem.params = params;
  return harness.run(definition().chunk, problem, 0);
}

TEST(Gru, AnOpenUpdateGateKeepsTheState) {
  const Outcome<float> got =
      run({{0.0, -kOpen, std::atanh(0.5)}, {0.0, kOpen, 3.0}, {0.0, 0.0, std::atanh(0.1)}},
          {{0.0, 0.0, 0.0}, {0.0, 0.0, 0.0}});
  EXPECT_NEAR(got.out[0], 0.5, 1e-6);
  EXPECT_NEAR(got.out[1], 0.5, 1e-6);
  EXPECT_NEAR(got.out[2], 0.3, 1e-6);  // half-way to 0.1
}

TEST(Gru, TheResetGateActsAfterTheRecurrentProductAndItsBias) {
  // Closed, it hides weight and bias of the candidate; open, it shows both.
  for (const double reset : {-kOpen, kOpen}) {
    const Outcome<float> got = run({{reset, -kOpen, std::atanh(0.5)}, {reset, -kOpen, 0.25}},
                                   {{0.0, 0.0, 2.0}, {0.0, 0.0, 0.125}});
    const double r = reset > 0.0 ? 1.0 : 0.0;
    const double first = std::tanh(std::atanh(0.5) + r * 0.125);
    EXPECT_NEAR(got.out[0], first, 1e-6) << reset;
    EXPECT_NEAR(got.out[1], std::tanh(0.25 + r * (2.0 * first + 0.125)), 1e-6) << reset;
  }
}

}  // namespace
}  // namespace tarn::mixers::gru
