#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/diagonal_scan.h"
#include "mixers/common/operator_rows.h"
#include "mixers/common/stages.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::diagonal_state_space {

extern const MixerDef kDef;

namespace {

using kernels::DiagonalScanProblem;

struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t inner_dim = 0;  ///< E
  int64_t state_dim = 0;  ///< N: one of each pair of conjugates

  /// Floats of E × N complex numbers.
  int64_t pairs() const { return 2 * inner_dim * state_dim; }
};

/// The operator's parameters, in the order of its shape.
enum Param : size_t { kLogStep, kLogReal, kImaginary, kRead, kSkip };

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->inner_dim = reader.integer("inner_dim", 1, 65536);
  config->state_dim = reader.integer("state_dim", 1, 4096, 32);
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

/// The start is S4D-Lin's: A_n = −1/2 + iπn, the step log-uniform in [0.001, 0.1].
OpShape op_shape(const MixerConfig& base) {
  const Config& config = config_of(&base);
  const int64_t channels = config.inner_dim;
  const int64_t size = config.state_dim;
  const Init log_step{Init::Kind::kInterval, std::log(0.001f), 0, std::log(0.1f)};
  const Init half{Init::Kind::kConstant, std::log(0.5f)};
  const Init turns{Init::Kind::kRamp, 0.0f, size,
                   std::numbers::pi_v<float> * static_cast<float>(size - 1)};
  const Init unit_variance{Init::Kind::kNormal, 0.5f * std::numbers::sqrt2_v<float>};
  OpShape shape;
  shape.inputs = {{"u", 1, channels, OpInput::Range::kNormal}};
  shape.out_heads = 1;
  shape.out_dim = channels;
  shape.params = {{"log_dt", {channels}, log_step, false},
                  {"a_log_real", {channels, size}, half, false},
                  {"a_imag", {channels, size}, turns, false},
                  {"c", {channels, size, 2}, unit_variance, false},
                  {"d", {channels}, {Init::Kind::kNormal, 1.0f}, false}};
  return shape;
}

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return {{"s", {config.inner_dim, config.state_dim, 2}, 0.0f, false}};
}

template <class Args>
DiagonalScanProblem problem_of(const Args& args) {
  const Config& config = config_of(args.config);
  return {args.sequences, config.inner_dim, config.state_dim, args.pool};
}

/// A [E, N] pairs and the step [E].
template <class T>
struct Rates {
  Rates(const Config& config, std::span<const T* const> params, Arena& arena)
      : a(arena.alloc<T>(config.pairs())), step(arena.alloc<T>(config.inner_dim)) {
    for (int64_t e = 0; e < config.inner_dim; ++e) step[e] = std::exp(params[kLogStep][e]);
    for (int64_t i = 0; i < config.pairs() / 2; ++i) {
      a[2 * i] = -std::exp(params[kLogReal][i]);
      a[2 * i + 1] = params[kImaginary][i];
    }
  }
  T* a;
  T* step;
};

/// Ā and B̄, [E, N] pairs each.
struct Discrete {
  float* transition;
  float* input;
};

const Discrete* discretise(const Config& config, std::span<const float* const> params,
                           Arena& arena) {
  auto* discrete = arena.alloc<Discrete>(1);
  discrete->transition = arena.alloc<float>(config.pairs());
  discrete->input = arena.alloc<float>(config.pairs());
  ArenaScope scope(arena);
  const Rates<float> rates(config, params, arena);
  kernels::zero_order_hold(config.inner_dim, config.state_dim, rates.a, rates.step,
                           discrete->transition, discrete->input);
  return discrete;
}

const void* prepare(const MixerConfig& config, std::span<const float* const> params, DType,
                    ThreadPool*, Arena& arena) noexcept {
  return discretise(config_of(&config), params, arena);
}

kernels::DiagonalStateSpaceInputs inputs_of(const OpArgs<float>& args, Arena& arena) {
  const auto* discrete = static_cast<const Discrete*>(args.prepared);
  if (discrete == nullptr) discrete = discretise(config_of(args.config), args.params, arena);
  return {rows_of(args.inputs[0]), discrete->transition, discrete->input, args.params[kRead],
          args.params[kSkip]};
}

void recurrent(const OpArgs<double>& args) {
  Arena arena;
  const Rates<double> rates(config_of(args.config), args.params, arena);
  kernels::reference::diagonal_state_space(
      problem_of(args),
      {rows_of(args.inputs[0]), rates.a, rates.step, args.params[kRead], args.params[kSkip]},
      state_of(args.state), rows_of(args.out));
}

void chunk(const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  kernels::diagonal_state_space_forward(problem_of(args), inputs_of(args, *args.arena),
                                        state_of(args.state), rows_of(args.out), nullptr,
                                        *args.arena);
}

void step(const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  kernels::diagonal_state_space_step(problem_of(args), inputs_of(args, *args.arena),
                                     state_of(args.state), rows_of(args.out), *args.arena);
}

float* zeros(int64_t size, Arena& arena) {
  float* values = arena.alloc<float>(size);
  std::fill_n(values, size, 0.0f);
  return values;
}

void backward(const OpBackwardArgs& args) noexcept {
  const OpArgs<float>& forward = args.forward;
  const Config& config = config_of(forward.config);
  Arena& arena = *forward.arena;
  ArenaScope scope(arena);
  const DiagonalScanProblem problem = problem_of(forward);
  const auto inputs = inputs_of(forward, arena);
  kernels::DiagonalStateSpaceGradients gradients;
  gradients.du = rows_of(args.dinputs[0]);
  gradients.dtransition = zeros(config.pairs(), arena);
  gradients.dinput = zeros(config.pairs(), arena);
  gradients.dc = args.dparams[kRead];
  gradients.dd = args.dparams[kSkip];
  gradients.dinitial = state_of(args.dinitial);
  float* borders = arena.alloc<float>(kernels::diagonal_state_space_borders(problem));
  replay(problem.sequences, forward.state, config.pairs(), config.inner_dim, arena,
         [&](float* const* state, kernels::Rows<float> y) {
           kernels::diagonal_state_space_forward(problem, inputs, state, y, borders, arena);
         });
  kernels::diagonal_state_space_backward(problem, inputs, borders, rows_of(args.dout),
                                         state_of(args.dfinal), gradients, arena);

  const Rates<float> rates(config, forward.params, arena);
  float* drates = zeros(config.pairs(), arena);
  float* dstep = zeros(config.inner_dim, arena);
  kernels::zero_order_hold_gradient(config.inner_dim, config.state_dim, rates.a, rates.step,
                                    gradients.dtransition, gradients.dinput, drates, dstep);
  for (int64_t e = 0; e < config.inner_dim; ++e) {
    args.dparams[kLogStep][e] += dstep[e] * rates.step[e];
  }
  // d(−e^x)/dx is the value itself.
  for (int64_t i = 0; i < config.pairs() / 2; ++i) {
    args.dparams[kLogReal][i] += drates[2 * i] * rates.a[2 * i];
    args.dparams[kImaginary][i] += drates[2 * i + 1];
  }
}

/// Two complex products and a sum per token, channel and state; backward, with the states computed
/// again, 50 flops.
double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const auto states = static_cast<double>(config_of(&base).pairs() / 2);
  if (pass == OpPass::kStep) return 16 * states;
  return (pass == OpPass::kForward ? 16 : 50) * states * static_cast<double>(tokens);
}

LayerProgram layer(const MixerConfig& base) {
  const Config& config = config_of(&base);
  LayerBuilder builder(op_shape(base), state_specs(base), config.model_dim);
  const Slice u = builder.linear("in", builder.x(), {config.inner_dim});
  return builder.finish("out", apply_function(builder, GateFunction::kGelu, builder.op({u})));
}

std::vector<std::string> example_configs() {
  return {R"({"inner_dim": 64})", R"({"inner_dim": 21, "state_dim": 5})",
          R"({"inner_dim": 9, "state_dim": 1})"};
}

}  // namespace

const MixerDef kDef{
    .name = "diagonal_state_space",
    .summary = "S4D: a linear system of complex states per channel that do not mix",
    .recurrence = "h = e^(dt A) h + (e^(dt A) - 1)/A u; y = 2 Re(C.h) + D u",
    .source = "Gu 2022, arXiv 2206.11893, sections 2-4; constants as in state-spaces/s4",
    .state_formula = "8*E*N",
    .bounded_state = true,
    .read_config = read_config,
    .state_specs = state_specs,
    .op_shape = op_shape,
    .recurrent = recurrent,
    .parallel = nullptr,
    .chunk = chunk,
    .step = step,
    .backward = backward,
    .flops = flops,
    .prepare = prepare,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::diagonal_state_space
