#include <algorithm>
#include <cmath>

#include "kernels/diagonal_scan.h"
#include "mixers/common/operator_rows.h"
#include "mixers/common/stages.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::selective_scan {

extern const MixerDef kDef;

namespace {

using kernels::DiagonalScanProblem;

struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t inner_dim = 0;  ///< E
  int64_t state_dim = 0;  ///< N
  int64_t dt_rank = 0;    ///< R
  int64_t conv_width = 4;

  int64_t states() const { return inner_dim * state_dim; }
};

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->inner_dim = reader.integer("inner_dim", 1, 65536);
  config->state_dim = reader.integer("state_dim", 1, 4096, 16);
  config->dt_rank = reader.integer("dt_rank", 1, 65536, (model_dim + 15) / 16);
  config->conv_width = reader.integer("conv_width", 1, 64, 4);
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& base) {
  using Range = OpInput::Range;
  const Config& config = config_of(&base);
  const int64_t channels = config.inner_dim;
  const int64_t size = config.state_dim;
  OpShape shape;
  shape.inputs = {{"x", 1, channels, Range::kNormal},
                  {"delta", 1, channels, Range::kUnitInterval},
                  {"b", 1, size, Range::kNormal},
                  {"c", 1, size, Range::kNormal}};
  shape.out_heads = 1;
  shape.out_dim = channels;
  // The real part of S4D's start: −1 … −N.
  const Init rates{Init::Kind::kLogRamp, 1.0f, size, static_cast<float>(size)};
  shape.params = {{"a_log", {channels, size}, rates, false},
                  {"d", {channels}, {Init::Kind::kConstant, 1.0f}, false}};
  return shape;
}

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return {{"s", {config.inner_dim, config.state_dim}, 0.0f, false}};
}

template <class Args>
DiagonalScanProblem problem_of(const Args& args) {
  const Config& config = config_of(args.config);
  return {args.sequences, config.inner_dim, config.state_dim, args.pool};
}

/// A = −e^(a_log).
template <class T>
const T* rates_of(const Config& config, const T* a_log, Arena& arena) {
  T* rates = arena.alloc<T>(config.states());
  for (int64_t i = 0; i < config.states(); ++i) rates[i] = -std::exp(a_log[i]);
  return rates;
}

const void* prepare(const MixerConfig& config, std::span<const float* const> params, DType,
                    ThreadPool*, Arena& arena) noexcept {
  return rates_of(config_of(&config), params[0], arena);
}

template <class T>
kernels::SelectiveScanInputs<T> inputs_of(const OpArgs<T>& args, Arena& arena) {
  const auto* rates = static_cast<const T*>(args.prepared);
  if (rates == nullptr) rates = rates_of(config_of(args.config), args.params[0], arena);
  return {rows_of(args.inputs[0]),
          rows_of(args.inputs[1]),
          rows_of(args.inputs[2]),
          rows_of(args.inputs[3]),
          rates,
          args.params[1]};
}

void recurrent(const OpArgs<double>& args) {
  Arena arena;
  kernels::reference::selective_scan(problem_of(args), inputs_of(args, arena), state_of(args.state),
                                     rows_of(args.out));
}

void chunk(const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  kernels::selective_scan_forward(problem_of(args), inputs_of(args, *args.arena),
                                  state_of(args.state), rows_of(args.out), nullptr, *args.arena);
}

void step(const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  kernels::selective_scan_step(problem_of(args), inputs_of(args, *args.arena), state_of(args.state),
                               rows_of(args.out), *args.arena);
}

void backward(const OpBackwardArgs& args) noexcept {
  const OpArgs<float>& forward = args.forward;
  const Config& config = config_of(forward.config);
  Arena& arena = *forward.arena;
  ArenaScope scope(arena);
  const DiagonalScanProblem problem = problem_of(forward);
  const auto inputs = inputs_of(forward, arena);
  float* drates = arena.alloc<float>(config.states());
  std::fill_n(drates, config.states(), 0.0f);
  kernels::SelectiveScanGradients gradients;
  gradients.dx = rows_of(args.dinputs[0]);
  gradients.ddelta = rows_of(args.dinputs[1]);
  gradients.db = rows_of(args.dinputs[2]);
  gradients.dc = rows_of(args.dinputs[3]);
  gradients.da = drates;
  gradients.dd = args.dparams[1];
  gradients.dinitial = state_of(args.dinitial);
  float* borders = arena.alloc<float>(kernels::selective_scan_borders(problem));
  replay(problem.sequences, forward.state, config.states(), config.inner_dim, arena,
         [&](float* const* state, kernels::Rows<float> y) {
           kernels::selective_scan_forward(problem, inputs, state, y, borders, arena);
         });
  kernels::selective_scan_backward(problem, inputs, borders, rows_of(args.dout),
                                   state_of(args.dfinal), gradients, arena);
  // dA/da_log = −e^(a_log) = A.
  for (int64_t i = 0; i < config.states(); ++i) args.dparams[0][i] += drates[i] * inputs.a[i];
}

/// Per channel and state element a decay, a write and a read forward; backward, with the states
/// computed again, 14.
double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const auto states = static_cast<double>(config_of(&base).states());
  if (pass == OpPass::kStep) return 4 * states;
  return (pass == OpPass::kForward ? 4 : 14) * states * static_cast<double>(tokens);
}

LayerProgram layer(const MixerConfig& base) {
  const Config& config = config_of(&base);
  const int64_t channels = config.inner_dim;
  const int64_t size = config.state_dim;
  LayerBuilder builder(op_shape(base), state_specs(base), config.model_dim);
  const Slice in = builder.linear("in", builder.x(), {channels, channels});
  const Slice x =
      short_convolution(builder, "conv", in.part(0, 1, channels), config.conv_width, true);
  const Slice made = builder.linear("x_proj", x, {config.dt_rank, size, size});
  const Slice raw = builder.linear("dt_proj", made.part(0, 1, config.dt_rank), {channels});
  const Slice delta = step_size(builder, "dt_proj.bias", raw);
  const Slice b = made.part(config.dt_rank, 1, size);
  const Slice c = made.part(config.dt_rank + size, 1, size);
  const Slice y = builder.op({x, delta, b, c});
  const Slice z = in.part(channels, 1, channels);
  return builder.finish("out", apply_gate(builder, GateFunction::kSilu, y, z));
}

std::vector<std::string> example_configs() {
  return {R"({"inner_dim": 128})", R"({"inner_dim": 21, "state_dim": 5, "dt_rank": 3})",
          R"({"inner_dim": 72, "state_dim": 33, "conv_width": 1})"};
}

}  // namespace

const MixerDef kDef{
    .name = "selective_scan",
    .summary =
        "Mamba: a diagonal state space per channel whose step, write and read follow the input",
    .recurrence = "h = e^(dt A) h + dt x B; y = C.h + D x",
    .source = "Gu 2023, arXiv 2312.00752, algorithm 2; constants as in mamba_ssm",
    .state_formula = "4*(E*N + (W - 1)*E)",
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

}  // namespace tarn::mixers::selective_scan
