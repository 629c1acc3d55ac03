// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "conformance/harness.h"
#include "mixers/layer.h"

namespace tarn::mixers::diagonal_state_space {
namespace {

using conformance::Gradients;
using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("diagonal_state_space", "test"); }

/// One channel with one state: the inputs and log_dt, a_log_real, a_imag, c, d.
Problem problem_of(const Harness& harness, const std::vector<double>& u,
                   const std::vector<std::vector<double>>& params) {
  Problem problem = harness.make_problem({{static_cast<int64_t>(u.size())}, {}, 0}, 1, true);
  for (size_t r = 0; r < u.size(); ++r) {
    problem.inputs[r * static_cast<size_t>(problem.width)] = u[r];
  }
  problem.params = params;
  return problem;
}

TEST(DiagonalStateSpace, AnImpulseTurnsAndDecays) {
  // Half a turn and a factor e^(-1/2) per token: A = -1/2 + i pi, step 1.
  const Harness harness(definition(), R"({"inner_dim": 1, "state_dim": 1})");
  const Problem problem = problem_of(
      harness, {1.0, 0.0, 0.0}, {{0.0}, {std::log(0.5)}, {std::numbers::pi}, {0.0, 1.0}, {10.0}});
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  // h = (e^A - 1)/A = (e^(-1/2) + 1)/(1/2 - i pi), of which C = i reads the imaginary part.
  const double decay = std::exp(-0.5);
  const double square = 0.25 + std::numbers::pi * std::numbers::pi;
  const double real = 0.5 * (decay + 1.0) / square;
  const double imaginary = std::numbers::pi * (decay + 1.0) / square;
  EXPECT_NEAR(got.out[0], -2.0 * imaginary + 10.0, 1e-5);
  EXPECT_NEAR(got.out[1], 2.0 * imaginary * decay, 1e-6);
  EXPECT_NEAR(got.out[2], -2.0 * imaginary * decay * decay, 1e-6);
  EXPECT_NEAR(got.state[0][0][0], real * decay * decay, 1e-6);
}

TEST(DiagonalStateSpace, HoldsAConstantInputAtItsGain) {
  // A constant input settles where A h = -u: y = 2 Re(C/(1/2)) = 4, whatever the step.
  const Harness harness(definition(), R"({"inner_dim": 1, "state_dim": 1})");
  for (const double step : {0.05, 0.5}) {
    const Problem problem =
        problem_of(harness, std::vector<double>(2000, 1.0),
                   {{std::log(step)}, {std::log(0.5)}, {0.0}, {1.0, 0.0}, {0.0}});
    const Outcome<float> got = harness.run(definition().chunk, problem, 0);
    EXPECT_NEAR(got.out[1999], 4.0, 1e-4) << step;
  }
}

TEST(DiagonalStateSpace, StartsAsS4DLin) {
  const Harness harness(definition(), R"({"inner_dim": 2, "state_dim": 4})");
  const ParamSpec& real = harness.shape.params[1];
  EXPECT_EQ(real.name, "a_log_real");
  EXPECT_FLOAT_EQ(std::exp(real.init.scale), 0.5f);
  const ParamSpec& imaginary = harness.shape.params[2];
  EXPECT_EQ(imaginary.init.kind, Init::Kind::kRamp);
  EXPECT_EQ(imaginary.init.period, 4);
  EXPECT_FLOAT_EQ(imaginary.init.high, 3.0f * std::numbers::pi_v<float>);
}

}  // namespace
}  // namespace tarn::mixers::diagonal_state_space
