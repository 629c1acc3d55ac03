// What every mechanism of mixers.def must satisfy, for every one of its example configs. A new
// mechanism gets all of this without a line of test code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/rng.h"
#include "conformance/harness.h"
#include "kernels/targets.h"

namespace tarn::conformance {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

struct Case {
  const mixers::MixerDef* mixer;
  std::string config;
  size_t index;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (!mixers::has_operator(*mixer)) continue;  // its layer is in layer_test.cpp
    size_t index = 0;
    for (const std::string& config : mixer->example_configs()) {
      cases.push_back({mixer, config, index++});
    }
  }
  return cases;
}

class Conformance : public testing::TestWithParam<Case> {
 protected:
  Conformance() : harness(*GetParam().mixer, GetParam().config) {}
  Harness harness;

  /// Rounding grows like a random walk over the terms that one output adds up: T tokens and the
  /// channels of the longest dot product. 16 covers the constants of maps and divisions.
  double tolerance(int64_t tokens) const {
    int64_t channels = 1;
    for (const auto& input : harness.shape.inputs) channels = std::max(channels, input.dim);
    return 16.0 * kEps * std::sqrt(static_cast<double>(tokens + channels));
  }
  void expect_close(const Outcome<float>& got, const Outcome<double>& want, int64_t tokens,
                    const std::string& what) const {
    EXPECT_LE(relative_error(got.out, want.out), tolerance(tokens)) << what;
    EXPECT_LE(relative_error(got.state, want.state), tolerance(tokens)) << what << ", state";
  }
};

Layout layout_of(std::vector<int64_t> lengths, std::vector<int64_t> prefixes = {}) {
  return {std::move(lengths), std::move(prefixes), 2};
}

std::string described(const char* form, int64_t tokens, int64_t chunk_size) {
  return std::string(form) + ", T = " + std::to_string(tokens) +
         ", C = " + std::to_string(chunk_size);
}

TEST_P(Conformance, FormsAgreeWithTheTokenLoop) {
  for (int64_t tokens : {0, 1, 15, 16, 17, 63, 64, 65, 131}) {
    for (bool with_state : {false, true}) {
      if (with_state && !harness.causal()) continue;
      const Problem problem = harness.make_problem(layout_of({tokens, 3}),
                                                   100 + static_cast<uint64_t>(tokens), with_state);
      const Outcome<double> want = harness.reference(problem);
      if (harness.mixer.parallel != nullptr) {
        expect_close(harness.run(harness.mixer.parallel, problem, 0), want, tokens,
                     described("parallel", tokens, 0));
      }
      if (!harness.causal()) continue;
      for (int64_t chunk_size : {0, 1, 16, 50}) {
        expect_close(harness.run(harness.mixer.chunk, problem, chunk_size), want, tokens,
                     described("chunk", tokens, chunk_size));
      }
      if (with_state) {
        expect_close(harness.run_steps(problem), want, tokens, described("step", tokens, 0));
      }
    }
  }
}

TEST_P(Conformance, ContinuesFromAnyState) {
  if (!harness.causal()) return;
  const Problem problem = harness.make_problem(layout_of({37, 1, 64}, {5, 70, 0}), 7, true);
  const Outcome<double> want = harness.reference(problem);
  expect_close(harness.run(harness.mixer.chunk, problem, 0), want, 134, "chunk");
  expect_close(harness.run(harness.mixer.chunk, problem, 16), want, 134, "chunk of 16");
  expect_close(harness.run_steps(problem), want, 134, "step");
}

TEST_P(Conformance, SplittingChangesNothingButRounding) {
  if (!harness.causal()) return;
  const int64_t tokens = 100;
  const Problem whole = harness.make_problem(layout_of({tokens}), 11, true);
  const Outcome<double> want = harness.reference(whole);
  for (const std::vector<int64_t>& pieces :
       {std::vector<int64_t>{37, 63}, {99, 1}, {1, 0, 99}, {13, 29, 31, 27}}) {
    Problem piece = whole;
    Outcome<float> joined;
    joined.out.assign(want.out.size(), std::numeric_limits<float>::quiet_NaN());
    int64_t done = 0;
    for (int64_t length : pieces) {
      piece.begins = {whole.begins[0] + done};
      piece.layout.lengths = {length};
      piece.layout.prefixes = {done};
      const Outcome<float> part = harness.run(harness.mixer.chunk, piece, 0);
      const int64_t first = piece.begins[0] * harness.out_width();
      std::copy_n(part.out.begin() + first, length * harness.out_width(),
                  joined.out.begin() + first);
      for (size_t j = 0; j < part.state.size(); ++j) {
        piece.state[j][0].assign(part.state[j][0].begin(), part.state[j][0].end());
      }
      joined.state = part.state;
      done += length;
    }
    expect_close(joined, want, tokens, "pieces starting with " + std::to_string(pieces[0]));
  }
}

TEST_P(Conformance, PaddingIsNeverTouchedAndBatchMatesChangeNoBit) {
  const bool with_state = harness.causal();
  const Problem together = harness.make_problem(layout_of({33, 0, 70, 1}), 21, with_state);
  const auto form = harness.causal() ? harness.mixer.chunk : harness.mixer.parallel;
  const Outcome<float> batch = harness.run(form, together, 0);
  for (size_t i = 0; i < together.begins.size(); ++i) {
    Problem alone = together;
    alone.begins = {together.begins[i]};
    alone.layout.lengths = {together.layout.lengths[i]};
    alone.layout.prefixes = {together.layout.prefixes[i]};
    for (auto& tensor : alone.state) tensor = {tensor[i]};
    const Outcome<float> single = harness.run(form, alone, 0);
    const auto first = together.begins[i] * harness.out_width();
    const auto size = together.layout.lengths[i] * harness.out_width();
    for (int64_t c = first; c < first + size; ++c) {
      ASSERT_EQ(single.out[c], batch.out[c]) << "sequence " << i << ", value " << c - first;
    }
    for (size_t j = 0; j < single.state.size(); ++j) {
      EXPECT_TRUE(same_bits(single.state[j][0], batch.state[j][i])) << "state of sequence " << i;
    }
    for (int64_t c = first + size; c < first + size + 2 * harness.out_width(); ++c) {
      ASSERT_TRUE(std::isnan(batch.out[c])) << "a padding row was written";
    }
  }
}

TEST_P(Conformance, SameBitsForAnyThreadCount) {
  const Problem problem = harness.make_problem(layout_of({80, 17, 5}), 31, harness.causal());
  const auto form = harness.causal() ? harness.mixer.chunk : harness.mixer.parallel;
  const Outcome<float> serial = harness.run(form, problem, 0);
  const std::vector<float> dout(serial.out.size(), 0.25f);
  const Gradients serial_gradient = harness.gradient(problem, dout, {});
  for (int threads : {2, 3}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(same_bits(harness.run(form, problem, 0, &pool).out, serial.out)) << threads;
    const Gradients gradient = harness.gradient(problem, dout, {}, &pool);
    EXPECT_TRUE(same_bits(gradient.dinputs, serial_gradient.dinputs)) << threads;
    for (size_t p = 0; p < gradient.dparams.size(); ++p) {
      EXPECT_TRUE(same_bits(gradient.dparams[p], serial_gradient.dparams[p]))
          << harness.shape.params[p].name << ", " << threads;
    }
  }
}

TEST_P(Conformance, PreparedParametersChangeNoBit) {
  if (harness.mixer.prepare == nullptr) return;
  const Problem problem = harness.make_problem(layout_of({9, 40}), 35, harness.causal());
  const auto form = mixers::whole_form(harness.mixer, *harness.config);
  const Outcome<float> whole = harness.run(form, problem, 0);
  const Outcome<float> steps = harness.causal() ? harness.run_steps(problem) : whole;
  harness.prepares = true;
  EXPECT_TRUE(same_bits(harness.run(form, problem, 0).out, whole.out));
  if (!harness.causal()) return;
  EXPECT_TRUE(same_bits(harness.run_steps(problem).out, steps.out));
}

TEST_P(Conformance, EveryTargetAgrees) {
  const Problem problem = harness.make_problem(layout_of({67, 4}), 41, harness.causal());
  const Outcome<double> want = harness.reference(problem);
  const auto form = harness.causal() ? harness.mixer.chunk : harness.mixer.parallel;
  for (const std::string& target : kernels::supported_targets()) {
    ASSERT_TRUE(kernels::force_target(target)) << target;
    expect_close(harness.run(form, problem, 0), want, 67, target);
    if (harness.causal()) expect_close(harness.run_steps(problem), want, 67, target + " step");
  }
  kernels::force_target("");
}

TEST_P(Conformance, ExtremesStayFinite) {
  Problem problem = harness.make_problem(layout_of({20}), 51, harness.causal());
  for (double scale : {0.0, -1e3, 1e3}) {
    Problem scaled = problem;
    for (size_t index = 0; index < scaled.inputs.size(); ++index) {
      double& value = scaled.inputs[index];
      if (!harness.may_have_any_size(static_cast<int64_t>(index) % problem.width)) continue;
      value = scale == -1e3 ? -1e3 * std::abs(value) : scale * value;
    }
    const auto form = harness.causal() ? harness.mixer.chunk : harness.mixer.parallel;
    const Outcome<float> got = harness.run(form, scaled, 0);
    for (int64_t c = 0; c < 20 * harness.out_width(); ++c) {
      ASSERT_TRUE(std::isfinite(got.out[c])) << "scale " << scale << ", value " << c;
    }
  }
}

/// Σ out·dout + Σ final·dfinal by the double reference: the loss whose gradient is checked.
double loss(const Harness& harness, const Problem& problem, const std::vector<float>& dout,
            const StateValues<float>& dfinal) {
  const Outcome<double> outcome = harness.reference(problem);
  double sum = 0.0;
  for (size_t c = 0; c < dout.size(); ++c) {
    if (!std::isnan(outcome.out[c])) sum += outcome.out[c] * static_cast<double>(dout[c]);
  }
  for (size_t j = 0; j < dfinal.size(); ++j) {
    for (size_t i = 0; i < dfinal[j].size(); ++i) {
      for (size_t e = 0; e < dfinal[j][i].size(); ++e) {
        sum += outcome.state[j][i][e] * static_cast<double>(dfinal[j][i][e]);
      }
    }
  }
  return sum;
}

struct GradientProblem {
  Problem problem;
  std::vector<float> dout;
  StateValues<float> dfinal;
};

GradientProblem gradient_problem(const Harness& harness, const Layout& layout, uint64_t seed) {
  GradientProblem result;
  result.problem = harness.make_problem(layout, seed, harness.causal());
  Philox rng{seed, 99, 0};
  result.dout.resize(static_cast<size_t>(result.problem.rows * harness.out_width()));
  for (float& value : result.dout) value = rng.next_normal();
  for (const auto& tensor : result.problem.state) {
    auto& values = result.dfinal.emplace_back();
    for (const auto& sequence : tensor) {
      values.emplace_back(sequence.size());
      for (float& value : values.back()) value = 0.1f * rng.next_normal();
    }
  }
  return result;
}

/// Central difference of the loss when *value moves.
double difference_quotient(const Harness& harness, GradientProblem& g, double* value) {
  const double step = 1e-5 * std::max(1.0, std::abs(*value));
  const double saved = *value;
  *value = saved + step;
  const double above = loss(harness, g.problem, g.dout, g.dfinal);
  *value = saved - step;
  const double below = loss(harness, g.problem, g.dout, g.dfinal);
  *value = saved;
  return (above - below) / (2.0 * step);
}

TEST_P(Conformance, GradientMatchesFiniteDifferences) {
  GradientProblem g = gradient_problem(
      harness, harness.causal() ? layout_of({5, 2}, {3, 0}) : layout_of({5, 2}), 61);
  const Gradients got = harness.gradient(g.problem, g.dout, g.dfinal);
  std::vector<double> want(g.problem.inputs.size(), std::nan(""));
  const int64_t used = g.problem.width - 3;
  for (size_t i = 0; i < g.problem.begins.size(); ++i) {
    for (int64_t r = g.problem.begins[i]; r < g.problem.begins[i] + g.problem.layout.lengths[i];
         ++r) {
      for (int64_t c = 0; c < used; ++c) {
        const auto index = static_cast<size_t>(r * g.problem.width + c);
        want[index] = difference_quotient(harness, g, &g.problem.inputs[index]);
      }
    }
  }
  EXPECT_LE(relative_error(got.dinputs, want), 4.0 * tolerance(10));
  for (size_t p = 0; p < g.problem.params.size(); ++p) {
    std::vector<double> want_param;
    for (double& value : g.problem.params[p]) {
      want_param.push_back(difference_quotient(harness, g, &value));
    }
    EXPECT_LE(relative_error(got.dparams[p], want_param), 4.0 * tolerance(10))
        << harness.shape.params[p].name;
  }
  for (size_t j = 0; j < g.problem.state.size(); ++j) {
    for (size_t i = 0; i < g.problem.state[j].size(); ++i) {
      auto& state = g.problem.state[j][i];
      // Per-token tensors: only the entries before this call are an input.
      const int64_t inputs = harness.state_specs[j].per_token
                                 ? harness.state_elements(j, g.problem.layout.prefixes[i])
                                 : static_cast<int64_t>(state.size());
      std::vector<double> want_state;
      for (int64_t e = 0; e < inputs; ++e) {
        want_state.push_back(difference_quotient(harness, g, &state[static_cast<size_t>(e)]));
      }
      EXPECT_LE(relative_error(got.dinitial[j][i], want_state), 4.0 * tolerance(10))
          << "initial state " << harness.state_specs[j].name << " of sequence " << i;
    }
  }
}

TEST_P(Conformance, LongGradientMatchesDirectionalDerivatives) {
  GradientProblem g = gradient_problem(
      harness, harness.causal() ? layout_of({150, 64}, {9, 0}) : layout_of({150, 64}), 71);
  const Gradients got = harness.gradient(g.problem, g.dout, g.dfinal);
  double gradient_norm = 0.0;
  for (float value : got.dinputs) {
    if (!std::isnan(value)) gradient_norm += static_cast<double>(value) * value;
  }
  gradient_norm = std::sqrt(gradient_norm);
  for (uint64_t trial = 0; trial < 4; ++trial) {
    Philox rng{1000 + trial, 0, 0};
    Problem above = g.problem;
    Problem below = g.problem;
    const double step = 1e-6;
    double predicted = 0.0;
    for (size_t c = 0; c < g.problem.inputs.size(); ++c) {
      if (std::isnan(g.problem.inputs[c]) || std::isnan(got.dinputs[c])) continue;
      const double direction = rng.next_normal();
      above.inputs[c] += step * direction;
      below.inputs[c] -= step * direction;
      predicted += direction * got.dinputs[c];
    }
    const double measured =
        (loss(harness, above, g.dout, g.dfinal) - loss(harness, below, g.dout, g.dfinal)) /
        (2.0 * step);
    EXPECT_NEAR(predicted, measured, 4.0 * tolerance(214) * gradient_norm) << "trial " << trial;
  }
}

TEST_P(Conformance, LongRunsDoNotDrift) {
  if (!harness.causal() || !harness.mixer.bounded_state) return;
  const int64_t tokens = GetParam().index == 0 ? 65536 : 4096;
  const Problem problem = harness.make_problem(layout_of({tokens}), 81, true);
  const Outcome<double> want = harness.reference(problem);
  const Outcome<float> got = harness.run(harness.mixer.chunk, problem, 0);
  EXPECT_LE(relative_error(got.out, want.out), tolerance(tokens));
  EXPECT_LE(relative_error(got.state, want.state), tolerance(tokens));
}

INSTANTIATE_TEST_SUITE_P(Mixers, Conformance, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<Case>& param) {
                           return std::string(param.param.mixer->name) + "_" +
                                  std::to_string(param.param.index);
                         });

}  // namespace
}  // namespace tarn::conformance
