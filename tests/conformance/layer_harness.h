#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/check.h"
#include "base/json.h"
#include "conformance/harness.h"
#include "mixers/common/layer_training.h"
#include "mixers/layer.h"

namespace tarn::conformance {

/// One call of a layer: packed sequences, parameters, input and state, in double; every fast form
/// starts from the same numbers as floats.
struct LayerProblem {
  std::vector<int64_t> lengths;
  std::vector<int64_t> positions;  ///< of each sequence's first row
  std::vector<std::vector<double>> params;
  std::vector<double> x;         ///< [rows, model_dim]
  std::vector<double> received;  ///< [rows, the layer's received_width]
  StateValues<double> state;     ///< empty: whole sequences from the initial state

  int64_t rows() const {
    int64_t sum = 0;
    for (const int64_t length : lengths) sum += length;
    return sum;
  }
  /// Takes x and what is received from rows [first, first + count) of `whole`.
  void take_rows(const LayerProblem& whole, int64_t first, int64_t count) {
    const auto part = [&](const std::vector<double>& values) {
      const int64_t width = static_cast<int64_t>(values.size()) / whole.rows();
      return std::vector<double>(values.begin() + first * width,
                                 values.begin() + (first + count) * width);
    };
    x = part(whole.x);
    received = part(whole.received);
  }
};

template <class T>
struct LayerOutcome {
  std::vector<T> y;
  StateValues<T> state;
  std::vector<T> handed_on;
};

/// Gradients that arrive at a layer; empty: zeros.
struct LayerArriving {
  std::vector<float> dy;
  StateValues<float> dfinal = {};
  std::vector<float> dhanded_on = {};
};

struct LayerGradient {
  std::vector<float> dx;
  std::vector<std::vector<float>> dparams;
  StateValues<float> dinitial;
  std::vector<float> dreceived;
};

template <class T>
std::vector<T> converted(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}

template <class T>
StateValues<T> converted(const StateValues<double>& values) {
  StateValues<T> result(values.size());
  for (size_t j = 0; j < values.size(); ++j) {
    for (const auto& sequence : values[j]) result[j].push_back(converted<T>(sequence));
  }
  return result;
}

/// The layer of one mechanism with one config.
class LayerHarness {
 public:
  LayerHarness(const mixers::MixerDef& definition, const Json& json, int64_t width)
      : mixer(definition), model_dim(width) {
    auto parsed = definition.parse_config(json, width, definition.name);
    TARN_CHECK(parsed.ok());
    config = *parsed;
    program = mixer.layer(*config);
    params = mixers::layer_params(mixer, *config);
    states = mixers::layer_states(mixer, *config);
  }

  const mixers::MixerDef& mixer;
  int64_t model_dim;
  std::shared_ptr<const mixers::MixerConfig> config;
  mixers::LayerProgram program;
  std::vector<mixers::ParamSpec> params;
  std::vector<mixers::StateSpec> states;

  bool causal() const { return !states.empty(); }

  static int64_t elements(const std::vector<int64_t>& shape) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    return size;
  }

  LayerOutcome<double> reference(const LayerProblem& problem) const {
    const Rows rows(problem);
    LayerOutcome<double> outcome{std::vector<double>(problem.x.size()), problem.state,
                                 std::vector<double>(handed_on_size(problem))};
    StateTable<double, StateValues<double>> table(outcome.state);
    const auto pointers = pointers_to<const double>(problem.params);
    mixers::LayerReference call;
    call.def = &mixer;
    call.config = config.get();
    call.program = &program;
    call.sequences = rows.view();
    call.positions = problem.positions.data();
    call.params = pointers;
    call.x = problem.x.data();
    call.y = outcome.y.data();
    call.received = problem.received.data();
    call.handed_on = outcome.handed_on.data();
    call.state = table.refs();
    mixers::layer_reference(call);
    return outcome;
  }

  /// The runtime's layer.
  LayerOutcome<float> run(const LayerProblem& problem, mixers::Form form,
                          ThreadPool* pool = nullptr) const {
    const Rows rows(problem);
    const std::vector<float> x = converted<float>(problem.x);
    const std::vector<float> received = converted<float>(problem.received);
    LayerOutcome<float> outcome{std::vector<float>(x.size(), NAN), converted<float>(problem.state),
                                std::vector<float>(handed_on_size(problem), NAN)};
    StateTable<float, StateValues<float>> table(outcome.state);
    std::vector<std::vector<float>> values;
    for (const auto& parameter : problem.params) values.push_back(converted<float>(parameter));
    const auto weights =
        mixers::prepare_layer(mixer, *config, pointers_to<const float>(values), {});
    Arena arena;
    mixers::LayerArgs args;
    args.config = config.get();
    args.weights = weights.get();
    args.sequences = rows.view();
    args.positions = problem.positions.data();
    args.x = x.data();
    args.out = outcome.y.data();
    args.received = received.data();
    args.handed_on = program.handed_on.width() > 0 ? outcome.handed_on.data() : nullptr;
    args.state = table.refs();
    args.form = form;
    args.pool = pool;
    args.arena = &arena;
    mixers::run_layer(mixer, args);
    return outcome;
  }

  /// The training's layer and its gradient of Σ y·dy + Σ final·dfinal + Σ handed_on·dhanded_on.
  LayerGradient gradient(const LayerProblem& problem, const LayerArriving& arriving,
                         ThreadPool* pool = nullptr, LayerOutcome<float>* outcome = nullptr) const {
    const Rows rows(problem);
    const std::vector<float> x = converted<float>(problem.x);
    std::vector<std::vector<float>> values;
    LayerGradient result;
    for (const auto& parameter : problem.params) {
      values.push_back(converted<float>(parameter));
      result.dparams.emplace_back(parameter.size(), 0.0f);
    }
    const auto pointers = pointers_to<const float>(values);
    const auto gradients = pointers_to<float>(result.dparams);
    std::vector<float> y(x.size(), NAN);
    const std::vector<float> received = converted<float>(problem.received);
    std::vector<float> handed_on(handed_on_size(problem), NAN);
    std::vector<float> kept(
        static_cast<size_t>(problem.rows() * mixers::layer_kept_columns(program)), NAN);
    StateValues<float> state = converted<float>(problem.state);
    StateTable<float, StateValues<float>> final_table(state);
    Arena arena;
    mixers::LayerTraining call;
    call.def = &mixer;
    call.config = config.get();
    call.program = &program;
    call.sequences = rows.view();
    call.positions = problem.positions.data();
    call.params = pointers;
    call.x = x.data();
    call.y = y.data();
    call.kept = kept.data();
    call.received = received.data();
    call.handed_on = program.handed_on.width() > 0 ? handed_on.data() : nullptr;
    call.state = final_table.refs();
    call.pool = pool;
    call.arena = &arena;
    mixers::layer_forward(call);
    if (outcome != nullptr) *outcome = {y, state, handed_on};

    StateValues<float> initial = converted<float>(problem.state);
    for (size_t j = 0; j < initial.size(); ++j) {
      if (states[j].per_token) initial[j] = state[j];
    }
    result.dinitial = initial;
    for (auto& tensor : result.dinitial) {
      for (auto& sequence : tensor) std::fill(sequence.begin(), sequence.end(), NAN);
    }
    StateTable<float, StateValues<float>> initial_table(initial);
    StateTable<const float, const StateValues<float>> dfinal_table(arriving.dfinal);
    StateTable<float, StateValues<float>> dinitial_table(result.dinitial);
    call.state = initial_table.refs();
    result.dx.assign(x.size(), NAN);
    mixers::LayerGradients wanted;
    wanted.dy = arriving.dy.data();
    wanted.dhanded_on = arriving.dhanded_on.empty() ? nullptr : arriving.dhanded_on.data();
    result.dreceived.assign(received.size(), NAN);
    wanted.dreceived = result.dreceived.data();
    wanted.dx = result.dx.data();
    wanted.dparams = gradients;
    wanted.dfinal = dfinal_table.refs();
    wanted.dinitial = dinitial_table.refs();
    mixers::layer_backward(call, wanted);
    return result;
  }

 private:
  size_t handed_on_size(const LayerProblem& problem) const {
    return static_cast<size_t>(problem.rows() * program.handed_on.width());
  }

  struct Rows {
    explicit Rows(const LayerProblem& problem) : lengths(problem.lengths) {
      for (const int64_t length : lengths) {
        begins.push_back(begins.empty() ? 0 : begins.back() + lengths[begins.size() - 1]);
        static_cast<void>(length);
      }
    }
    kernels::Sequences view() const {
      return {static_cast<int64_t>(begins.size()), begins.data(), lengths.data()};
    }
    std::vector<int64_t> begins;
    const std::vector<int64_t>& lengths;
  };
};

}  // namespace tarn::conformance
