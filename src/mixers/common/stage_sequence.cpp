// Stages that look along the sequence: the short convolution and rotary positions.
#include <algorithm>
#include <vector>

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

/// Input t of sequence i as its convolution sees it: from the state for t < 0, null before that.
template <class T>
const T* input_at(const StageArgs<T>& args, int64_t i, int64_t t) {
  if (t >= 0) return args.inputs[0].at(args.sequences.begin[i] + t, 0);
  const int64_t kept = convolution_of(*args.stage).width - 1;
  if (!args.state) return nullptr;
  return args.state.tensors[0][i] + (kept + t) * args.stage->out.width();
}

/// sums[c] = bias[c] + Σ_w weight[c, w]·x_{t−W+1+w}[c].
template <class T>
void convolve(const StageArgs<T>& args, int64_t i, int64_t t, int64_t first, int64_t end, T* sums) {
  const ConvolutionOptions& options = convolution_of(*args.stage);
  for (int64_t c = first; c < end; ++c) sums[c] = options.bias ? args.params[1][c] : T(0);
  for (int64_t w = 0; w < options.width; ++w) {
    const T* x = input_at(args, i, t - options.width + 1 + w);
    if (x == nullptr) continue;
    const T* weight = args.params[0] + w;
    for (int64_t c = first; c < end; ++c) sums[c] += weight[c * options.width] * x[c];
  }
}

/// The state after the call: the last W − 1 inputs, from the call or from the state itself.
template <class T>
void keep_inputs(const StageArgs<T>& args, int64_t i, int64_t first, int64_t end) {
  if (!args.state) return;
  const int64_t kept = convolution_of(*args.stage).width - 1;
  const int64_t channels = args.stage->out.width();
  const int64_t length = args.sequences.length[i];
  for (int64_t s = 0; s < kept; ++s) {  // oldest first, so nothing is overwritten before it moves
    const T* from = input_at(args, i, length - kept + s);
    std::copy(from + first, from + end, args.state.tensors[0][i] + s * channels + first);
  }
}

template <class T>
void convolution_forward(const StageArgs<T>& args) {
  const int64_t channels = args.stage->out.width();
  const auto body = [&args](int64_t first, int64_t end, int) {
    for (int64_t i = 0; i < args.sequences.count; ++i) {
      for (int64_t t = 0; t < args.sequences.length[i]; ++t) {
        T* y = args.out.at(args.sequences.begin[i] + t, 0);
        convolve(args, i, t, first, end, y);
        for (int64_t c = first; c < end; ++c) y[c] *= sigmoid(y[c]);
      }
      keep_inputs(args, i, first, end);
    }
  };
  parallel_for(args.pool, channels, body);  // channels do not depend on each other
}

/// dx and the parameters' gradients of channels [first, end), sequences and tokens in order.
void convolution_backward_channels(const StageGradientArgs& args, int64_t first, int64_t end) {
  const StageArgs<float>& forward = args.forward;
  const ConvolutionOptions& options = convolution_of(*forward.stage);
  const int64_t channels = forward.stage->out.width();
  const int64_t kept = options.width - 1;
  std::vector<float> sums(static_cast<size_t>(channels));
  std::vector<float> dsums(static_cast<size_t>(channels));
  for (int64_t i = 0; i < forward.sequences.count; ++i) {
    const int64_t length = forward.sequences.length[i];
    // Gradient of input t: a row of dinputs, or for t < 0 of the initial state.
    const auto dinput = [&](int64_t t) -> float* {
      if (t >= 0) return args.dinputs[0].at(forward.sequences.begin[i] + t, 0);
      return args.dinitial ? args.dinitial.tensors[0][i] + (kept + t) * channels : nullptr;
    };
    for (int64_t t = -kept; t < length; ++t) {
      float* dx = dinput(t);
      if (dx != nullptr) std::fill(dx + first, dx + end, 0.0f);
    }
    for (int64_t s = 0; args.dfinal && s < kept; ++s) {
      float* dx = dinput(length - kept + s);
      const float* from = args.dfinal.tensors[0][i] + s * channels;
      for (int64_t c = first; dx != nullptr && c < end; ++c) dx[c] += from[c];
    }
    for (int64_t t = 0; t < length; ++t) {
      const float* dy = args.dout.at(forward.sequences.begin[i] + t, 0);
      convolve(forward, i, t, first, end, sums.data());
      for (int64_t c = first; c < end; ++c) {
        dsums[static_cast<size_t>(c)] =
            dy[c] * gate_slope(GateFunction::kSilu, sums[static_cast<size_t>(c)]);
      }
      for (int64_t w = 0; w < options.width; ++w) {
        const int64_t from = t - options.width + 1 + w;
        const float* x = input_at(forward, i, from);
        float* dx = dinput(from);
        for (int64_t c = first; c < end; ++c) {
          const float dsum = dsums[static_cast<size_t>(c)];
          if (x != nullptr) args.dparams[0][c * options.width + w] += dsum * x[c];
          if (dx != nullptr) dx[c] += dsum * forward.params[0][c * options.width + w];
        }
      }
      for (int64_t c = first; options.bias && c < end; ++c) {
        args.dparams[1][c] += dsums[static_cast<size_t>(c)];
      }
    }
  }
}

void convolution_backward(const StageGradientArgs& args) noexcept {
  parallel_for(args.forward.pool, args.forward.stage->out.width(),
               [&args](int64_t first, int64_t end, int) {
                 convolution_backward_channels(args, first, end);
               });
}

void convolution_forward_f32(const StageArgs<float>& args) noexcept { convolution_forward(args); }
constexpr StageDef kConvolution{"short_convolution", false, convolution_forward_f32,
                                convolution_forward<double>, convolution_backward};

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
