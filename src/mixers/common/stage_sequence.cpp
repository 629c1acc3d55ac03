// Stages that look along the sequence: the short convolution and rotary positions.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/short_convolution.h"
#include "kernels/softmax_attention.h"
#include "mixers/common/stage_call.h"
#include "mixers/common/stage_math.h"
#include "mixers/common/stages.h"

namespace tarn::mixers {
namespace {

using kernels::Heads;

struct ConvolutionOptions final : StageOptions {
  int64_t width = 0;
  bool bias = false;
};

const ConvolutionOptions& convolution_of(const Stage& stage) {
  return static_cast<const ConvolutionOptions&>(*stage.options);
}

template <class T>
T* const* state_of(const StateRefs<T>& state) {
  return state && !state.tensors.empty() ? state.tensors[0] : nullptr;
}

template <class T>
kernels::ConvolutionProblem convolution_problem(const StageArgs<T>& args) {
  const ConvolutionOptions& options = convolution_of(*args.stage);
  kernels::ConvolutionProblem problem;
  problem.sequences = args.sequences;
  problem.channels = args.stage->out.width();
  problem.width = options.width;
  if constexpr (std::is_same_v<T, float>) {
    problem.weight = args.params[0];
    problem.bias = options.bias ? args.params[1] : nullptr;
  }
  problem.pool = args.pool;
  return problem;
}

void convolution_forward(const StageArgs<float>& args) noexcept {
  kernels::convolution_forward(convolution_problem(args), args.inputs[0], state_of(args.state),
                               args.out, *args.arena);
}

void convolution_reference(const StageArgs<double>& args) {
  const double* bias = convolution_of(*args.stage).bias ? args.params[1] : nullptr;
  kernels::reference::convolution(convolution_problem(args), args.params[0], bias, args.inputs[0],
                                  state_of(args.state), args.out);
}

void convolution_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  kernels::ConvolutionGradients gradients;
  gradients.dx = args.dinputs[0];
  gradients.dweight = args.dparams[0];
  gradients.dbias = convolution_of(*forward.stage).bias ? args.dparams[1] : nullptr;
  gradients.dinitial = state_of(args.dinitial);
  kernels::convolution_backward(convolution_problem(forward), forward.inputs[0],
                                state_of(forward.state), args.dout, state_of(args.dfinal),
                                gradients, *forward.arena);
}

constexpr StageDef kConvolution{"short_convolution", false, convolution_forward,
                                convolution_reference, convolution_backward};

struct RotaryOptions final : StageOptions {
  int64_t dim = 0;
  double base = 0.0;
};

const RotaryOptions& rotary_of(const Stage& stage) {
  return static_cast<const RotaryOptions&>(*stage.options);
}

template <class T>
void copy_rows(int64_t rows, int64_t width, Heads<const T> from, Heads<T> to) {
  for (int64_t row = 0; row < rows; ++row) std::copy_n(from.at(row, 0), width, to.at(row, 0));
}

/// Positions of the call, or zeros from the arena.
const int64_t* positions_of(const int64_t* positions, int64_t count, Arena& arena) {
  if (positions != nullptr) return positions;
  int64_t* zeros = arena.alloc<int64_t>(count);
  std::fill_n(zeros, count, 0);
  return zeros;
}

void rotary_forward(const StageArgs<float>& args) noexcept {
  const RotaryOptions& options = rotary_of(*args.stage);
  ArenaScope scope(*args.arena);
  copy_rows(packed_rows(args.sequences), args.stage->out.width(), args.inputs[0], args.out);
  kernels::rotary(args.sequences, positions_of(args.positions, args.sequences.count, *args.arena),
                  args.stage->out.heads, options.dim, options.base, false, args.out);
}

void rotary_reference(const StageArgs<double>& args) {
  const RotaryOptions& options = rotary_of(*args.stage);
  copy_rows(packed_rows(args.sequences), args.stage->out.width(), args.inputs[0], args.out);
  kernels::reference::rotary(args.sequences,
                             positions_of(args.positions, args.sequences.count, *args.arena),
                             args.stage->out.heads, options.dim, options.base, false, args.out);
}

void rotary_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const RotaryOptions& options = rotary_of(*forward.stage);
  ArenaScope scope(*forward.arena);
  copy_rows(packed_rows(forward.sequences), forward.stage->out.width(), args.dout, args.dinputs[0]);
  kernels::rotary(forward.sequences,
                  positions_of(forward.positions, forward.sequences.count, *forward.arena),
                  forward.stage->out.heads, options.dim, options.base, true, args.dinputs[0]);
}

constexpr StageDef kRotary{"rotary", false, rotary_forward, rotary_reference, rotary_backward};

}  // namespace

Slice short_convolution(LayerBuilder& builder, const std::string& name, const Slice& x,
                        int64_t width, bool bias) {
  auto options = std::make_shared<ConvolutionOptions>();
  options->width = width;
  options->bias = bias;
  const int64_t channels = x.width();
  // torch's Conv1d: uniform in ±1/√(inputs of one output).
  const Init start{Init::Kind::kUniform, 1.0f / std::sqrt(static_cast<float>(width))};
  std::vector<ParamSpec> params = {{name + ".weight", {channels, width}, start, false}};
  if (bias) params.push_back({name + ".bias", {channels}, start, false});
  std::vector<StateSpec> states;
  if (width > 1) states.push_back({name, {width - 1, channels}, 0.0f, false});
  return builder.stage(kConvolution, {x}, x.heads, x.dim, std::move(params), std::move(states),
                       std::move(options));
}

Slice rotate_positions(LayerBuilder& builder, const Slice& x, int64_t rotary_dim, double base) {
  auto options = std::make_shared<RotaryOptions>();
  options->dim = rotary_dim;
  options->base = base;
  return builder.stage(kRotary, {x}, x.heads, x.dim, {}, {}, std::move(options));
}

}  // namespace tarn::mixers
