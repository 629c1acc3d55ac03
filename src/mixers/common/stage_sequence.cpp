// Stages that look along the sequence: the short convolution, the token shift and rotary positions.
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

/// The row before row t of sequence i; null: zeros.
template <class T>
const T* row_before(const StageArgs<T>& args, int64_t i, int64_t t) {
  if (t > 0) return args.inputs[0].at(args.sequences.begin[i] + t - 1, 0);
  return args.state ? args.state.tensors[0][i] : nullptr;
}

/// y = x + mix·(before − x) in channels [first, end).
template <class T>
void blend(int64_t first, int64_t end, const T* __restrict x, const T* __restrict before,
           const T* __restrict mix, T* __restrict y) {
  if (before == nullptr) {
    for (int64_t c = first; c < end; ++c) y[c] = x[c] + mix[c] * (T(0) - x[c]);
  } else {
    for (int64_t c = first; c < end; ++c) y[c] = x[c] + mix[c] * (before[c] - x[c]);
  }
}

/// Channels [first, end) of every blend.
template <class T>
void shift_channels(const StageArgs<T>& args, int64_t first, int64_t end) {
  const Slice& out = args.stage->out;
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    const int64_t length = args.sequences.length[i];
    for (int64_t t = 0; t < length; ++t) {
      const int64_t row = args.sequences.begin[i] + t;
      const T* x = args.inputs[0].at(row, 0);
      const T* before = row_before(args, i, t);
      for (int64_t h = 0; h < out.heads; ++h) {
        blend(first, end, x, before, args.params[0] + h * out.dim, args.out.at(row, h));
      }
    }
    if (!args.state || length == 0) continue;
    const T* last = args.inputs[0].at(args.sequences.begin[i] + length - 1, 0);
    std::copy(last + first, last + end, args.state.tensors[0][i] + first);
  }
}

template <class T>
void shift_forward(const StageArgs<T>& args) {
  // Channels do not depend on each other.
  parallel_for(packed_rows(args.sequences) < kStageRows ? nullptr : args.pool, args.stage->out.dim,
               [&args](int64_t first, int64_t end, int) { shift_channels(args, first, end); });
}

void shift_forward_f32(const StageArgs<float>& args) noexcept { shift_forward(args); }

/// Adds what dy gives to the gradients of one blend: of its mix, of x, and of the row before.
void blend_backward(int64_t first, int64_t end, const float* __restrict dy,
                    const float* __restrict x, const float* __restrict before,
                    const float* __restrict mix, float* __restrict dmix, float* __restrict dx,
                    float* __restrict dbefore) {
  if (before == nullptr) {
    for (int64_t c = first; c < end; ++c) dmix[c] += dy[c] * (0.0f - x[c]);
  } else {
    for (int64_t c = first; c < end; ++c) dmix[c] += dy[c] * (before[c] - x[c]);
  }
  for (int64_t c = first; c < end; ++c) dx[c] += dy[c] * (1.0f - mix[c]);
  if (dbefore == nullptr) return;
  for (int64_t c = first; c < end; ++c) dbefore[c] += dy[c] * mix[c];
}

/// Adds the gradients of row t of sequence i to those of x_t, of the row before and of the mix.
void shift_backward_row(const StageGradientArgs& args, int64_t i, int64_t t, int64_t first,
                        int64_t end, float* dx, float* dbefore) {
  const StageArgs<float>& forward = args.forward;
  const Slice& out = forward.stage->out;
  const int64_t row = forward.sequences.begin[i] + t;
  for (int64_t h = 0; h < out.heads; ++h) {
    blend_backward(first, end, args.dout.at(row, h), forward.inputs[0].at(row, 0),
                   row_before(forward, i, t), forward.params[0] + h * out.dim,
                   args.dparams[0] + h * out.dim, dx, dbefore);
  }
}

void shift_backward(const StageGradientArgs& args) noexcept {
  const kernels::Sequences& sequences = args.forward.sequences;
  const int64_t width = args.forward.stage->out.dim;
  parallel_for(args.forward.pool, width, [&](int64_t first, int64_t end, int) {
    for (int64_t i = 0; i < sequences.count; ++i) {
      const int64_t length = sequences.length[i];
      // Gradient of row t, or for t < 0 of the initial state.
      const auto dinput = [&](int64_t t) -> float* {
        if (t >= 0) return args.dinputs[0].at(sequences.begin[i] + t, 0);
        return args.dinitial ? args.dinitial.tensors[0][i] : nullptr;
      };
      for (int64_t t = -1; t < length; ++t) {
        float* dx = dinput(t);
        if (dx != nullptr) std::fill(dx + first, dx + end, 0.0f);
      }
      float* last = dinput(length - 1);
      if (args.dfinal && last != nullptr) {
        const float* from = args.dfinal.tensors[0][i];
        std::copy(from + first, from + end, last + first);
      }
      for (int64_t t = 0; t < length; ++t) {
        shift_backward_row(args, i, t, first, end, dinput(t), dinput(t - 1));
      }
    }
  });
}

constexpr StageDef kTokenShift{"token_shift", false, shift_forward_f32, shift_forward<double>,
                               shift_backward};

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

Slice token_shift(LayerBuilder& builder, const Slice& x, int64_t count, Init start) {
  std::vector<int64_t> shape = {count, x.width()};
  if (count == 1) shape.erase(shape.begin());
  return builder.stage(kTokenShift, {x}, count, x.width(),
                       {{"mix", std::move(shape), std::move(start), false}},
                       {{"shift", {x.width()}, 0.0f, false}});
}

Slice rotate_positions(LayerBuilder& builder, const Slice& x, int64_t rotary_dim, double base) {
  auto options = std::make_shared<RotaryOptions>();
  options->dim = rotary_dim;
  options->base = base;
  return builder.stage(kRotary, {x}, x.heads, x.dim, {}, {}, std::move(options));
}

}  // namespace tarn::mixers
