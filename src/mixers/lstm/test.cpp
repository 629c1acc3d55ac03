// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::lstm {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("lstm", "test"); }

/// Rows of the operator's inputs, in the order of its shape; the recurrent parameters.
Problem problem_of(const Harness& harness, const std::vector<std::vector<double>>& rows,
                   const std::vector<std::vector<double>>& params, bool with_state) {
  Problem problem =
      harness.make_problem({{static_cast<int64_t>(rows.size())}, {}, 0}, 1, with_state);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(),
              problem.inputs.begin() + static_cast<int64_t>(r) * problem.width);
  }
  problem.params = params;
  return problem;
}

TEST(Lstm, GatesLieInTorchsOrder) {
  const Harness harness(definition(), R"({"hidden_dim": 1})");
  constexpr double kOpen = 50.0;
  // Columns: input, forget, candidate, output. Write 0.5; keep it, closed; show it; forget it.
  const Problem problem = problem_of(harness,
                                     {{kOpen, -kOpen, std::atanh(0.5), -kOpen},
                                      {-kOpen, kOpen, 3.0, -kOpen},
                                      {-kOpen, kOpen, 3.0, kOpen},
                                      {-kOpen, -kOpen, 3.0, kOpen}},
                                     {{0.0, 0.0, 0.0, 0.0}, {0.0, 0.0, 0.0, 0.0}}, true);
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  EXPECT_NEAR(got.out[0], 0.0, 1e-6);
  EXPECT_NEAR(got.out[1], 0.0, 1e-6);
  EXPECT_NEAR(got.out[2], std::tanh(0.5), 1e-6);
  EXPECT_NEAR(got.out[3], 0.0, 1e-6);
  EXPECT_NEAR(got.state[1][0][0], 0.0, 1e-6);
}

TEST(Lstm, TheOutputIsWhatComesBack) {
  // The candidate sees h alone: h_1 = tanh(0.5)·1, then tanh of weight times that plus its bias.
  const Harness harness(definition(), R"({"hidden_dim": 1})");
  constexpr double kOpen = 50.0;
  const Problem problem =
      problem_of(harness, {{kOpen, -kOpen, std::atanh(0.5), kOpen}, {kOpen, -kOpen, 0.0, kOpen}},
                 {{0.0, 0.0, 2.0, 0.0}, {0.0, 0.0, 0.0, 0.0}}, true);
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  EXPECT_NEAR(got.state[1][0][0], std::tanh(2.0 * std::tanh(0.5)), 1e-6);
}

TEST(Lstm, TheSecondDirectionReadsFromTheEnd) {
  const Harness harness(definition(), R"({"hidden_dim": 1, "bidirectional": true})");
  EXPECT_FALSE(harness.causal());
  constexpr double kOpen = 50.0;
  const std::vector<double> keep = {-kOpen, kOpen, 0.0, kOpen};
  const std::vector<double> write = {kOpen, -kOpen, std::atanh(0.5), kOpen};
  const auto row = [](std::vector<double> first, const std::vector<double>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  const std::vector<double> none(4, 0.0);
  const Problem problem = problem_of(harness, {row(keep, keep), row(write, write), row(keep, keep)},
                                     {none, none, none, none}, false);
  const Outcome<float> got = harness.run(definition().parallel, problem, 0);
  const float seen = std::tanh(0.5f);
  const std::vector<float> wanted = {0.0f, seen, seen, seen, seen, 0.0f};
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got.out[i], wanted[i], 1e-6) << i;
}

}  // namespace
}  // namespace tarn::mixers::lstm
