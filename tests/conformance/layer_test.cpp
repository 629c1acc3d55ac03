// What the layer of every mechanism must satisfy, for every one of its example configs: projections,
// convolutions, gates and norms around the operator, against the same program in double precision.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "conformance/layer_harness.h"

namespace tarn::conformance {
namespace {

using mixers::Form;

constexpr int64_t kModelDim = 16;

struct Case {
  const mixers::MixerDef* mixer;
  std::string config;
  size_t index;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    size_t index = 0;
    for (const std::string& config : mixer->example_configs()) {
      cases.push_back({mixer, config, index++});
    }
  }
  return cases;
}

class Layer : public testing::TestWithParam<Case> {
 protected:
  Layer() : harness(*GetParam().mixer, *parse_json(GetParam().config, "config"), kModelDim) {}
  LayerHarness harness;

  /// As for operators, with the products around them; 64 covers norms, which divide by small numbers.
  double tolerance(int64_t tokens) const {
    int64_t channels = kModelDim;
    for (const int64_t width : harness.program.widths) channels = std::max(channels, width);
    return 64.0 * std::numeric_limits<float>::epsilon() *
           std::sqrt(static_cast<double>(tokens + channels));
  }

  LayerProblem problem_of(std::vector<int64_t> lengths, uint64_t seed, bool with_state,
                          std::vector<int64_t> prefixes = {}) const {
    LayerProblem problem;
    problem.lengths = std::move(lengths);
    problem.positions.assign(problem.lengths.size(), 0);
    for (const mixers::ParamSpec& spec : harness.params) {
      problem.params.push_back(draw_parameter(spec, 3));
    }
    problem.x.resize(static_cast<size_t>(problem.rows() * kModelDim));
    Philox rng{seed, 0, 0};
    for (double& value : problem.x) value = rng.next_normal();
    problem.received.resize(static_cast<size_t>(problem.rows() * harness.program.received_width()));
    for (double& value : problem.received) value = static_cast<float>(rng.next_normal());
    if (!with_state) return problem;
    if (prefixes.empty()) prefixes.assign(problem.lengths.size(), 0);
    for (const mixers::StateSpec& spec : harness.states) {
      auto& tensor = problem.state.emplace_back();
      for (size_t i = 0; i < problem.lengths.size(); ++i) {
        const int64_t tokens = prefixes[i] + problem.lengths[i];
        tensor.emplace_back(LayerHarness::elements(spec.shape) * (spec.per_token ? tokens : 1),
                            spec.initial_value);
      }
    }
    if (std::all_of(prefixes.begin(), prefixes.end(), [](int64_t n) { return n == 0; })) {
      return problem;
    }
    LayerProblem prefix = problem_of(prefixes, seed + 1, false);
    prefix.state = problem.state;
    problem.state = harness.reference(prefix).state;
    for (auto& tensor : problem.state) {
      for (auto& sequence : tensor) {
        for (double& value : sequence) value = static_cast<float>(value);
      }
    }
    problem.positions = prefixes;
    return problem;
  }

  void expect_close(const LayerOutcome<float>& got, const LayerOutcome<double>& want,
                    int64_t tokens, const std::string& what) const {
    EXPECT_LE(relative_error(got.y, want.y), tolerance(tokens)) << what;
    ASSERT_EQ(got.handed_on.size(), want.handed_on.size()) << what;
    EXPECT_LE(relative_error(got.handed_on, want.handed_on), tolerance(tokens)) << what;
    for (size_t j = 0; j < want.state.size(); ++j) {
      EXPECT_LE(
          relative_error(StateValues<float>{got.state[j]}, StateValues<double>{want.state[j]}),
          tolerance(tokens))
          << what << ", state " << harness.states[j].name;
    }
  }
};

TEST_P(Layer, FormsAgreeWithTheReference) {
  for (const bool with_state : {false, true}) {
    if (with_state && !harness.causal()) continue;
    const LayerProblem problem = problem_of({37, 1, 0, 70}, 1, with_state);
    const LayerOutcome<double> want = harness.reference(problem);
    expect_close(harness.run(problem, Form::kAuto), want, 70, "auto");
    expect_close(harness.run(problem, Form::kParallel), want, 70, "parallel");
    LayerOutcome<float> trained;
    harness.gradient(problem, {std::vector<float>(problem.x.size(), 0.0f)}, nullptr, &trained);
    expect_close(trained, want, 70, "training");
  }
}

TEST_P(Layer, PiecesAndStepsContinueFromTheState) {
  if (!harness.causal()) return;
  const LayerProblem whole = problem_of({41}, 2, true, {6});
  const LayerOutcome<double> want = harness.reference(whole);
  for (const std::vector<int64_t>& pieces :
       {std::vector<int64_t>{2, 17, 1, 21}, {3, 1, 1, 36}, std::vector<int64_t>(41, 1)}) {
    LayerProblem piece = whole;
    LayerOutcome<float> joined;
    int64_t done = 0;
    for (const int64_t length : pieces) {
      piece.lengths = {length};
      piece.positions = {whole.positions[0] + done};
      piece.take_rows(whole, done, length);
      const LayerOutcome<float> part = harness.run(piece, Form::kAuto);
      joined.y.insert(joined.y.end(), part.y.begin(), part.y.end());
      joined.handed_on.insert(joined.handed_on.end(), part.handed_on.begin(), part.handed_on.end());
      joined.state = part.state;
      for (size_t j = 0; j < part.state.size(); ++j) {
        piece.state[j][0].assign(part.state[j][0].begin(), part.state[j][0].end());
      }
      done += length;
    }
    expect_close(joined, want, 47, "pieces starting with " + std::to_string(pieces[0]));
  }
}

TEST_P(Layer, ThreadsAndBatchMatesChangeNoBit) {
  const std::vector<int64_t> lengths = {90, 0, 1, 33};
  const LayerProblem together = problem_of(lengths, 3, harness.causal());
  const LayerOutcome<float> serial = harness.run(together, Form::kAuto);
  const LayerArriving arriving{std::vector<float>(together.x.size(), 0.25f)};
  const LayerGradient gradient = harness.gradient(together, arriving);
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(same_bits(harness.run(together, Form::kAuto, &pool).y, serial.y)) << threads;
    const LayerGradient shared = harness.gradient(together, arriving, &pool);
    EXPECT_TRUE(same_bits(shared.dx, gradient.dx)) << threads;
    EXPECT_TRUE(same_bits(shared.dreceived, gradient.dreceived)) << threads;
    for (size_t p = 0; p < shared.dparams.size(); ++p) {
      EXPECT_TRUE(same_bits(shared.dparams[p], gradient.dparams[p])) << harness.params[p].name;
    }
  }
  int64_t row = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    LayerProblem alone = together;
    alone.lengths = {lengths[i]};
    alone.positions = {0};
    alone.take_rows(together, row, lengths[i]);
    for (auto& tensor : alone.state) tensor = {tensor[i]};
    // A lone token takes the step form by itself; asked for chunks, it must give the batch's bits.
    const LayerOutcome<float> single = harness.run(alone, Form::kChunk);
    const auto first = serial.y.begin() + row * kModelDim;
    EXPECT_TRUE(std::equal(single.y.begin(), single.y.end(), first)) << "sequence " << i;
    row += lengths[i];
  }
}

TEST_P(Layer, StepsOfABatchHaveTheBitsOfSingleSteps) {
  if (!harness.causal()) return;
  const std::vector<int64_t> prefixes = {3, 0, 9, 1, 4, 4, 7, 2, 5, 6, 8, 3, 2, 1};
  const LayerProblem batch =
      problem_of(std::vector<int64_t>(prefixes.size(), 1), 4, true, prefixes);
  const LayerOutcome<float> together = harness.run(batch, Form::kAuto);
  ThreadPool pool(2);
  EXPECT_TRUE(same_bits(harness.run(batch, Form::kAuto, &pool).y, together.y));
  for (size_t i = 0; i < prefixes.size(); ++i) {
    LayerProblem alone = batch;
    alone.lengths = {1};
    alone.positions = {prefixes[i]};
    alone.take_rows(batch, static_cast<int64_t>(i), 1);
    for (auto& tensor : alone.state) tensor = {tensor[i]};
    const LayerOutcome<float> single = harness.run(alone, Form::kAuto);
    EXPECT_TRUE(std::equal(single.y.begin(), single.y.end(),
                           together.y.begin() + static_cast<int64_t>(i) * kModelDim))
        << "sequence " << i;
    EXPECT_TRUE(
        std::equal(single.handed_on.begin(), single.handed_on.end(),
                   together.handed_on.begin() + static_cast<int64_t>(i * single.handed_on.size())))
        << "sequence " << i;
    for (size_t j = 0; j < single.state.size(); ++j) {
      EXPECT_TRUE(same_bits(single.state[j][0], together.state[j][i])) << harness.states[j].name;
    }
  }
}

/// Σ y·dy + Σ final·dfinal + Σ handed_on·dhanded_on by the reference.
double loss(const LayerHarness& harness, const LayerProblem& problem,
            const LayerArriving& arriving) {
  const StateValues<float>& dfinal = arriving.dfinal;
  const LayerOutcome<double> outcome = harness.reference(problem);
  double sum = 0.0;
  const auto add = [&sum](const std::vector<double>& values, const std::vector<float>& weights) {
    for (size_t c = 0; c < weights.size(); ++c) sum += values[c] * static_cast<double>(weights[c]);
  };
  add(outcome.y, arriving.dy);
  add(outcome.handed_on, arriving.dhanded_on);
  for (size_t j = 0; j < dfinal.size(); ++j) {
    for (size_t i = 0; i < dfinal[j].size(); ++i) {
      add(outcome.state[j][i], dfinal[j][i]);
    }
  }
  return sum;
}

/// Compares a gradient with central differences along random directions: one wrong element shows in
/// every direction.
template <class Change>
void expect_directions(const LayerHarness& harness, const LayerProblem& problem,
                       const LayerArriving& arriving, const std::vector<float>& gradient,
                       int64_t used, double tolerance, const std::string& what,
                       const Change& values_of) {
  double norm = 0.0;
  for (int64_t e = 0; e < used; ++e) norm += std::pow(gradient[static_cast<size_t>(e)], 2);
  norm = std::sqrt(norm);
  for (uint64_t trial = 0; trial < 3; ++trial) {
    Philox rng{500 + trial, 0, 0};
    LayerProblem above = problem;
    LayerProblem below = problem;
    constexpr double kStep = 1e-6;
    double predicted = 0.0;
    for (int64_t e = 0; e < used; ++e) {
      const auto index = static_cast<size_t>(e);
      const double direction = rng.next_normal();
      values_of(above)[index] += kStep * direction;
      values_of(below)[index] -= kStep * direction;
      predicted += direction * static_cast<double>(gradient[index]);
    }
    const double measured =
        (loss(harness, above, arriving) - loss(harness, below, arriving)) / (2.0 * kStep);
    EXPECT_NEAR(predicted, measured, tolerance * norm + 1e-7) << what << ", trial " << trial;
  }
}

/// All gradients of a problem of 61 rows whose sequences have seen `prefixes`.
void expect_gradients(const LayerHarness& harness, const LayerProblem& problem,
                      const std::vector<int64_t>& prefixes, double limit) {
  Philox rng{9, 0, 0};
  LayerArriving arriving{std::vector<float>(problem.x.size())};
  for (float& value : arriving.dy) value = rng.next_normal();
  arriving.dhanded_on.resize(
      static_cast<size_t>(problem.rows() * harness.program.handed_on.width()));
  for (float& value : arriving.dhanded_on) value = rng.next_normal();
  for (const auto& tensor : problem.state) {
    auto& values = arriving.dfinal.emplace_back();
    for (const auto& sequence : tensor) {
      values.emplace_back(sequence.size());
      for (float& value : values.back()) value = 0.1f * rng.next_normal();
    }
  }
  const LayerGradient got = harness.gradient(problem, arriving);
  expect_directions(harness, problem, arriving, got.dx, static_cast<int64_t>(got.dx.size()), limit,
                    "x", [](LayerProblem& p) -> std::vector<double>& { return p.x; });
  expect_directions(harness, problem, arriving, got.dreceived,
                    static_cast<int64_t>(got.dreceived.size()), limit, "received",
                    [](LayerProblem& p) -> std::vector<double>& { return p.received; });
  for (size_t p = 0; p < got.dparams.size(); ++p) {
    expect_directions(harness, problem, arriving, got.dparams[p],
                      static_cast<int64_t>(got.dparams[p].size()), limit, harness.params[p].name,
                      [p](LayerProblem& q) -> std::vector<double>& { return q.params[p]; });
  }
  for (size_t j = 0; j < problem.state.size(); ++j) {
    for (size_t i = 0; i < problem.state[j].size(); ++i) {
      const mixers::StateSpec& spec = harness.states[j];
      const int64_t used = LayerHarness::elements(spec.shape) * (spec.per_token ? prefixes[i] : 1);
      expect_directions(harness, problem, arriving, got.dinitial[j][i], used, limit,
                        "initial state " + spec.name,
                        [i, j](LayerProblem& q) -> std::vector<double>& { return q.state[j][i]; });
    }
  }
}

TEST_P(Layer, GradientMatchesDirectionalDerivatives) {
  const std::vector<int64_t> prefixes = {4, 0, 9};
  const double limit = 4.0 * tolerance(61);
  // Training has no state; what continues from one has.
  expect_gradients(harness, problem_of({19, 2, 40}, 5, false), {0, 0, 0}, limit);
  if (!harness.causal()) return;
  expect_gradients(harness, problem_of({19, 2, 40}, 5, true, prefixes), prefixes, limit);
}

TEST_P(Layer, WrongConfigsAreRefusedWithTheKey) {
  auto json = parse_json(GetParam().config, "config");
  ASSERT_TRUE(json.ok());
  json->set("no_such_key", 1);
  const auto parsed = harness.mixer.parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("no_such_key"), std::string::npos)
      << parsed.error().to_string();
}

/// All forms and states of an operator are there, or it is not there at all.
TEST_P(Layer, FormsAreThoseOfAnOperatorOrNone) {
  const mixers::MixerDef& mixer = harness.mixer;
  const mixers::OpShape shape = mixer.op_shape(*harness.config);
  const bool exists = mixers::has_operator(mixer);
  EXPECT_EQ(!shape.inputs.empty(), exists);
  EXPECT_EQ(shape.out_heads * shape.out_dim > 0, exists);
  EXPECT_EQ(mixer.flops(*harness.config, mixers::OpPass::kForward, 3) > 0.0, exists);
  const auto& stages = harness.program.stages;
  EXPECT_EQ(std::any_of(stages.begin(), stages.end(),
                        [](const mixers::Stage& stage) {
                          return stage.kind == mixers::Stage::Kind::kOperator;
                        }),
            exists);
  if (exists) return;
  EXPECT_TRUE(mixer.state_specs(*harness.config).empty());
  EXPECT_TRUE(mixer.parallel == nullptr && mixer.chunk == nullptr && mixer.step == nullptr &&
              mixer.backward == nullptr && mixer.chunk_bf16 == nullptr);
}

INSTANTIATE_TEST_SUITE_P(Mixers, Layer, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<Case>& param) {
                           return std::string(param.param.mixer->name) + "_" +
                                  std::to_string(param.param.index);
                         });

}  // namespace
}  // namespace tarn::conformance
