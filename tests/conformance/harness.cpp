#include "conformance/harness.h"

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"
#include "base/rng.h"

namespace tarn::conformance {
namespace {

using kernels::Heads;
using mixers::OpArgs;
using mixers::OpInput;

constexpr int64_t kModelDim = 16;
constexpr int64_t kPaddingColumns = 3;  // an odd row stride: rows are not aligned

template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

double draw(OpInput::Range range, Philox& rng) {
  switch (range) {
    case OpInput::Range::kUnitNorm:  // scaled afterwards
    case OpInput::Range::kNormal: return rng.next_normal();
    case OpInput::Range::kLogDecay: return -3.0 * rng.next_uniform() * rng.next_uniform();
    case OpInput::Range::kUnitInterval: return rng.next_uniform();
  }
  return 0.0;
}

void scale_to_unit_norm(const OpInput& input, double* row) {
  for (int64_t h = 0; h < input.heads; ++h, row += input.dim) {
    double square = 0.0;
    for (int64_t c = 0; c < input.dim; ++c) square += row[c] * row[c];
    for (int64_t c = 0; c < input.dim; ++c) row[c] /= std::sqrt(square);
  }
}

template <class T>
std::vector<T> convert(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}

template <class T>
StateValues<T> convert(const StateValues<double>& values) {
  StateValues<T> result(values.size());
  for (size_t j = 0; j < values.size(); ++j) {
    for (const auto& sequence : values[j]) result[j].push_back(convert<T>(sequence));
  }
  return result;
}

}  // namespace

std::vector<double> draw_parameter(const mixers::ParamSpec& spec, uint64_t seed) {
  using Kind = mixers::Init::Kind;
  int64_t size = 1;
  for (int64_t extent : spec.shape) size *= extent;
  std::vector<double> values(static_cast<size_t>(size));
  Philox rng{seed, xxh3_64(spec.name.data(), static_cast<int64_t>(spec.name.size())), 0};
  const double low = spec.init.scale;
  const double high = spec.init.high;
  int64_t next = 0;
  for (double& value : values) {
    const double uniform = rng.next_open_uniform();
    switch (spec.init.kind) {
      case Kind::kUniform: value = low * (2.0 * uniform - 1.0); break;
      case Kind::kNormal: value = low * rng.next_normal(); break;
      case Kind::kLogUniform:
      case Kind::kLogRamp: value = std::log(low + (high - low) * uniform); break;
      case Kind::kRamp:
      case Kind::kInterval: value = low + (high - low) * uniform; break;
      case Kind::kStepSize:
        value = std::log(std::expm1(low * std::pow(high / low, uniform)));
        break;
      case Kind::kFormula:
        value = spec.init.formula(next++, spec.init.arguments) + 0.1 * rng.next_normal();
        break;
      default: value = low + 0.3 * rng.next_normal(); break;
    }
    value = static_cast<float>(value);
  }
  return values;
}

Harness::Harness(const mixers::MixerDef& definition, const std::string& config_text)
    : mixer(definition) {
  auto json = parse_json(config_text, definition.name);
  TARN_CHECK(json.ok());
  auto parsed = definition.parse_config(*json, kModelDim, definition.name);
  TARN_CHECK(parsed.ok());
  config = *parsed;
  shape = mixer.op_shape(*config);
  state_specs = mixer.state_specs(*config);
}

bool Harness::may_have_any_size(int64_t column) const {
  for (const OpInput& input : shape.inputs) {
    const int64_t width = input.heads * input.dim;
    if (column < width) return input.range == OpInput::Range::kNormal;
    column -= width;
  }
  return false;
}

int64_t Harness::state_elements(size_t tensor, int64_t tokens) const {
  int64_t elements = state_specs[tensor].per_token ? tokens : 1;
  for (int64_t extent : state_specs[tensor].shape) elements *= extent;
  return elements;
}

Problem Harness::make_problem(const Layout& layout, uint64_t seed, bool with_state) const {
  Problem problem;
  problem.layout = layout;
  if (problem.layout.prefixes.empty()) problem.layout.prefixes.assign(layout.lengths.size(), 0);
  problem.width = kPaddingColumns;
  for (const OpInput& input : shape.inputs) problem.width += input.heads * input.dim;
  for (int64_t length : layout.lengths) {
    problem.begins.push_back(problem.rows);
    problem.rows += length + layout.gap_rows;
  }
  problem.inputs.assign(static_cast<size_t>(problem.rows * problem.width), kNaN<double>);
  for (size_t i = 0; i < layout.lengths.size(); ++i) {
    Philox rng{seed, i, 0};
    for (int64_t r = 0; r < layout.lengths[i]; ++r) {
      double* row = problem.inputs.data() + (problem.begins[i] + r) * problem.width;
      for (const OpInput& input : shape.inputs) {
        for (int64_t c = 0; c < input.heads * input.dim; ++c) row[c] = draw(input.range, rng);
        if (input.range == OpInput::Range::kUnitNorm) scale_to_unit_norm(input, row);
        // Rounded to float, so that every precision starts from the same numbers.
        for (int64_t c = 0; c < input.heads * input.dim; ++c) row[c] = static_cast<float>(row[c]);
        row += input.heads * input.dim;
      }
    }
  }
  for (const mixers::ParamSpec& spec : shape.params) {
    problem.params.push_back(draw_parameter(spec, 5));
  }
  if (!with_state) return problem;
  for (size_t j = 0; j < state_specs.size(); ++j) {
    auto& tensor = problem.state.emplace_back();
    for (size_t i = 0; i < layout.lengths.size(); ++i) {
      const int64_t tokens = problem.layout.prefixes[i] + layout.lengths[i];
      tensor.emplace_back(state_elements(j, tokens), state_specs[j].initial_value);
    }
  }
  const bool has_prefix =
      std::any_of(problem.layout.prefixes.begin(), problem.layout.prefixes.end(),
                  [](int64_t n) { return n > 0; });
  if (!has_prefix) return problem;
  Problem prefix = make_problem({problem.layout.prefixes, {}, 0}, seed + 1, false);
  prefix.state = problem.state;
  problem.state = reference(prefix).state;
  for (auto& tensor : problem.state) {
    for (auto& sequence : tensor) {
      for (double& value : sequence) value = static_cast<float>(value);
    }
  }
  return problem;
}

template <class T>
Outcome<T> Harness::call(void (*form)(const OpArgs<T>&), const Problem& problem, int64_t chunk_size,
                         ThreadPool* pool) const {
  const std::vector<T> inputs = convert<T>(problem.inputs);
  std::vector<std::vector<T>> params;
  for (const auto& parameter : problem.params) params.push_back(convert<T>(parameter));
  auto param_pointers = pointers_to<const T>(params);
  Outcome<T> outcome;
  outcome.state = convert<T>(problem.state);
  outcome.out.assign(static_cast<size_t>(problem.rows * out_width()), kNaN<T>);
  outcome.saved.assign(static_cast<size_t>(problem.rows * shape.saved_per_row), kNaN<float>);

  std::vector<Heads<const T>> heads;
  int64_t column = 0;
  for (const OpInput& input : shape.inputs) {
    heads.push_back({inputs.data() + column, problem.width, input.dim});
    column += input.heads * input.dim;
  }
  StateTable<T, StateValues<T>> table(outcome.state);
  Arena arena;
  OpArgs<T> args;
  args.config = config.get();
  args.sequences = {static_cast<int64_t>(problem.begins.size()), problem.begins.data(),
                    problem.layout.lengths.data()};
  args.positions = problem.layout.prefixes.data();
  args.inputs = heads;
  args.params = param_pointers;
  args.out = {outcome.out.data(), out_width(), shape.out_dim};
  args.saved = std::is_same_v<T, float> ? outcome.saved.data() : nullptr;
  args.state = table.refs();
  args.chunk_size = chunk_size;
  args.pool = pool;
  args.arena = &arena;
  Arena kept;
  if constexpr (std::is_same_v<T, float>) {
    if (prepares) {
      args.prepared = mixer.prepare(*config, param_pointers, DType::kF32, pool, kept);
      if (mixer.prepared_is_all) std::ranges::fill(param_pointers, nullptr);
    }
  }
  form(args);
  return outcome;
}

Outcome<double> Harness::reference(const Problem& problem) const {
  return call<double>(mixer.recurrent, problem, 0, nullptr);
}

Outcome<float> Harness::run(FormFunction form, const Problem& problem, int64_t chunk_size,
                            ThreadPool* pool) const {
  return call<float>(form, problem, chunk_size, pool);
}

Outcome<float> Harness::run_rows(const std::vector<std::vector<double>>& rows) const {
  Problem problem = make_problem({{static_cast<int64_t>(rows.size())}, {}, 0}, 1, true);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(),
              problem.inputs.begin() + static_cast<int64_t>(r) * problem.width);
  }
  return run(mixer.chunk, problem, 0);
}

Outcome<float> Harness::run_steps(const Problem& problem) const {
  const size_t count = problem.begins.size();
  Outcome<float> total;
  total.out.assign(static_cast<size_t>(problem.rows * out_width()), kNaN<float>);
  Problem now = problem;  // holds one token per sequence that still has one
  StateValues<double> state = problem.state;
  int64_t longest = 0;
  for (int64_t length : problem.layout.lengths) longest = std::max(longest, length);
  for (int64_t t = 0; t < longest; ++t) {
    std::vector<size_t> alive;
    for (size_t i = 0; i < count; ++i) {
      if (t < problem.layout.lengths[i]) alive.push_back(i);
    }
    now.begins.clear();
    now.layout.lengths.assign(alive.size(), 1);
    now.layout.prefixes.clear();
    now.state.assign(state.size(), {});
    for (size_t i : alive) {
      now.begins.push_back(problem.begins[i] + t);
      now.layout.prefixes.push_back(problem.layout.prefixes[i] + t);
      for (size_t j = 0; j < state.size(); ++j) now.state[j].push_back(state[j][i]);
    }
    const Outcome<float> step = run(mixer.step, now, 0);
    for (size_t a = 0; a < alive.size(); ++a) {
      const int64_t row = now.begins[a];
      std::copy_n(step.out.begin() + row * out_width(), out_width(),
                  total.out.begin() + row * out_width());
      for (size_t j = 0; j < state.size(); ++j) {
        state[j][alive[a]].assign(step.state[j][a].begin(), step.state[j][a].end());
      }
    }
  }
  total.state = convert<float>(state);
  return total;
}

Gradients Harness::gradient(const Problem& problem, const std::vector<float>& dout,
                            const StateValues<float>& dfinal, ThreadPool* pool) const {
  const Outcome<float> forward = run(causal() ? mixer.chunk : mixer.parallel, problem, 0, pool);
  const std::vector<float> inputs = convert<float>(problem.inputs);
  StateValues<float> initial = convert<float>(problem.state);
  for (size_t j = 0; j < initial.size(); ++j) {
    if (state_specs[j].per_token) initial[j] = forward.state[j];
  }
  Gradients result;
  result.dinputs.assign(problem.inputs.size(), kNaN<float>);
  result.dinitial = initial;
  for (auto& tensor : result.dinitial) {
    for (auto& sequence : tensor) std::fill(sequence.begin(), sequence.end(), kNaN<float>);
  }
  std::vector<Heads<const float>> heads;
  std::vector<Heads<float>> dheads;
  int64_t column = 0;
  for (const OpInput& input : shape.inputs) {
    heads.push_back({inputs.data() + column, problem.width, input.dim});
    dheads.push_back({result.dinputs.data() + column, problem.width, input.dim});
    column += input.heads * input.dim;
  }
  std::vector<std::vector<float>> params;
  for (const auto& parameter : problem.params) {
    params.push_back(convert<float>(parameter));
    result.dparams.emplace_back(parameter.size(), 0.0f);
  }
  const auto param_pointers = pointers_to<const float>(params);
  const auto dparam_pointers = pointers_to<float>(result.dparams);
  StateTable<float, StateValues<float>> initial_table(initial);
  StateTable<const float, const StateValues<float>> dfinal_table(dfinal);
  StateTable<float, StateValues<float>> dinitial_table(result.dinitial);
  std::vector<float> out = forward.out;
  std::vector<float> saved = forward.saved;
  Arena arena;
  mixers::OpBackwardArgs args;
  args.forward.config = config.get();
  args.forward.sequences = {static_cast<int64_t>(problem.begins.size()), problem.begins.data(),
                            problem.layout.lengths.data()};
  args.forward.positions = problem.layout.prefixes.data();
  args.forward.inputs = heads;
  args.forward.params = param_pointers;
  args.forward.out = {out.data(), out_width(), shape.out_dim};
  args.forward.saved = saved.data();
  args.forward.state = initial_table.refs();
  args.forward.pool = pool;
  args.forward.arena = &arena;
  args.dout = {dout.data(), out_width(), shape.out_dim};
  args.dfinal = dfinal_table.refs();
  args.dinputs = dheads;
  args.dparams = dparam_pointers;
  args.dinitial = dinitial_table.refs();
  mixer.backward(args);
  return result;
}

}  // namespace tarn::conformance
