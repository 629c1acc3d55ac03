// Stages that treat every channel on its own.
#include <algorithm>
#include <limits>

#include "mixers/common/stage_math.h"
#include "mixers/common/stages.h"

namespace tarn::mixers {
namespace {

struct FunctionOptions final : StageOptions {
  GateFunction function = GateFunction::kIdentity;
  double scale = 1.0;
};

const FunctionOptions& function_of(const Stage& stage) {
  return static_cast<const FunctionOptions&>(*stage.options);
}

void function_forward(const StageArgs<float>& args) noexcept {
  const FunctionOptions& options = function_of(*args.stage);
  kernels::gate_function(options.function, static_cast<float>(options.scale), args.end - args.first,
                         args.stage->out.width(), block_of(args.inputs[0], args.first), nullptr,
                         block_of(args.out, args.first));
}

void function_reference(const StageArgs<double>& args) {
  const FunctionOptions& options = function_of(*args.stage);
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t c = 0; c < args.stage->out.width(); ++c) {
      args.out.at(row, 0)[c] = options.scale * kernels::reference::gate_function(
                                                   options.function, args.inputs[0].at(row, 0)[c]);
    }
  }
}

void function_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const FunctionOptions& options = function_of(*forward.stage);
  kernels::gate_function_gradient(
      options.function, static_cast<float>(options.scale), forward.end - forward.first,
      forward.stage->out.width(), block_of(forward.inputs[0], forward.first), nullptr,
      block_of(args.dout, forward.first), block_of(args.dinputs[0], forward.first));
}

constexpr StageDef kFunction{"function", true, function_forward, function_reference,
                             function_backward};

void gate_forward(const StageArgs<float>& args) noexcept {
  kernels::multiply_by_gate(function_of(*args.stage).function, args.end - args.first,
                            args.stage->out.width(), block_of(args.inputs[0], args.first),
                            block_of(args.inputs[1], args.first), block_of(args.out, args.first));
}

void gate_reference(const StageArgs<double>& args) {
  const GateFunction function = function_of(*args.stage).function;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t c = 0; c < args.stage->out.width(); ++c) {
      args.out.at(row, 0)[c] =
          args.inputs[0].at(row, 0)[c] *
          kernels::reference::gate_function(function, args.inputs[1].at(row, 0)[c]);
    }
  }
}

void gate_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t first = forward.first;
  kernels::multiply_by_gate_gradient(function_of(*forward.stage).function, forward.end - first,
                                     forward.stage->out.width(), block_of(forward.inputs[0], first),
                                     block_of(forward.inputs[1], first), block_of(args.dout, first),
                                     block_of(args.dinputs[0], first),
                                     block_of(args.dinputs[1], first));
}

constexpr StageDef kGate{"gate", true, gate_forward, gate_reference, gate_backward};

template <class T>
void skip_forward(const StageArgs<T>& args) {
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const T* x = args.inputs[0].at(row, h);
      const T* skip = args.inputs[1].at(row, h);
      T* y = args.out.at(row, h);
      for (int64_t c = 0; c < out.dim; ++c) y[c] = x[c] + args.params[0][h] * skip[c];
    }
  }
}

void skip_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const Slice& out = forward.stage->out;
  for (int64_t row = forward.first; row < forward.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const float* skip = forward.inputs[1].at(row, h);
      const float* dy = args.dout.at(row, h);
      float* dx = args.dinputs[0].at(row, h);
      float* dskip = args.dinputs[1].at(row, h);
      float sum = 0.0f;
      for (int64_t c = 0; c < out.dim; ++c) {
        dx[c] = dy[c];
        dskip[c] = forward.params[0][h] * dy[c];
        sum += dy[c] * skip[c];
      }
      args.dparams[0][h] += sum;
    }
  }
}

void skip_forward_f32(const StageArgs<float>& args) noexcept { skip_forward(args); }
constexpr StageDef kSkip{"skip", true, skip_forward_f32, skip_forward<double>, skip_backward};

/// Steps above this are not limited: no softplus of an f32 reaches it.
constexpr double kNoLimit = std::numeric_limits<float>::max();

struct StepOptions final : StageOptions {
  double low = 0.0;
  double high = 0.0;
  bool limits() const { return low > 0.0 || high < kNoLimit; }
};

const StepOptions& step_of(const Stage& stage) {
  return static_cast<const StepOptions&>(*stage.options);
}

void step_forward(const StageArgs<float>& args) noexcept {
  const StepOptions& options = step_of(*args.stage);
  const int64_t width = args.stage->out.width();
  kernels::gate_function(GateFunction::kSoftplus, 1.0f, args.end - args.first, width,
                         block_of(args.inputs[0], args.first), args.params[0],
                         block_of(args.out, args.first));
  if (!options.limits()) return;
  const auto low = static_cast<float>(options.low);
  const auto high = static_cast<float>(options.high);
  for (int64_t row = args.first; row < args.end; ++row) {
    float* y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = std::clamp(y[c], low, high);
  }
}

void step_reference(const StageArgs<double>& args) {
  const StepOptions& options = step_of(*args.stage);
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t c = 0; c < args.stage->out.width(); ++c) {
      const double step = softplus(args.inputs[0].at(row, 0)[c] + args.params[0][c]);
      args.out.at(row, 0)[c] = std::clamp(step, options.low, options.high);
    }
  }
}

void step_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const StepOptions& options = step_of(*forward.stage);
  const int64_t width = forward.stage->out.width();
  kernels::gate_function_gradient(GateFunction::kSoftplus, 1.0f, forward.end - forward.first, width,
                                  block_of(forward.inputs[0], forward.first), forward.params[0],
                                  block_of(args.dout, forward.first),
                                  block_of(args.dinputs[0], forward.first));
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* y = forward.out.at(row, 0);
    float* dx = args.dinputs[0].at(row, 0);
    for (int64_t c = 0; options.limits() && c < width; ++c) {
      const bool clamped =
          y[c] <= static_cast<float>(options.low) || y[c] >= static_cast<float>(options.high);
      if (clamped) dx[c] = 0.0f;
    }
    for (int64_t c = 0; c < width; ++c) args.dparams[0][c] += dx[c];
  }
}

constexpr StageDef kStep{"step_size", true, step_forward, step_reference, step_backward};

template <class T>
void decay_forward(const StageArgs<T>& args) {
  const Slice& out = args.stage->out;
  for (int64_t h = 0; h < out.heads; ++h) {
    const T rate = -std::exp(args.params[0][h]);
    for (int64_t row = args.first; row < args.end; ++row) {
      const T* step = args.inputs[0].at(row, h);
      T* y = args.out.at(row, h);
      for (int64_t c = 0; c < out.dim; ++c) y[c] = rate * step[c];
    }
  }
}

void decay_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const Slice& out = forward.stage->out;
  for (int64_t h = 0; h < out.heads; ++h) {
    const float rate = -std::exp(forward.params[0][h]);
    float sum = 0.0f;
    for (int64_t row = forward.first; row < forward.end; ++row) {
      const float* dy = args.dout.at(row, h);
      const float* y = forward.out.at(row, h);
      float* dstep = args.dinputs[0].at(row, h);
      for (int64_t c = 0; c < out.dim; ++c) {
        dstep[c] = rate * dy[c];
        sum += dy[c] * y[c];
      }
    }
    args.dparams[0][h] += sum;
  }
}

void decay_forward_f32(const StageArgs<float>& args) noexcept { decay_forward(args); }
constexpr StageDef kDecay{"log_decay", true, decay_forward_f32, decay_forward<double>,
                          decay_backward};

}  // namespace

Slice apply_function(LayerBuilder& builder, GateFunction function, const Slice& x, double scale) {
  auto options = std::make_shared<FunctionOptions>();
  options->function = function;
  options->scale = scale;
  return builder.stage(kFunction, {x}, x.heads, x.dim, {}, {}, std::move(options));
}

Slice apply_gate(LayerBuilder& builder, GateFunction function, const Slice& x, const Slice& gate) {
  auto options = std::make_shared<FunctionOptions>();
  options->function = function;
  return builder.stage(kGate, {x, gate}, x.heads, x.dim, {}, {}, std::move(options));
}

Slice add_skip(LayerBuilder& builder, const std::string& name, const Slice& x, const Slice& skip) {
  return builder.stage(kSkip, {x, skip.part(0, x.heads, x.dim)}, x.heads, x.dim,
                       {{name, {x.heads}, {Init::Kind::kConstant, 1.0f}, false}});
}

Slice step_size(LayerBuilder& builder, const std::string& name, const Slice& x, double low,
                double high) {
  auto options = std::make_shared<StepOptions>();
  options->low = low;
  options->high = high;
  const Init start{Init::Kind::kStepSize, 0.001f, 0, 0.1f};
  return builder.stage(kStep, {x}, x.heads, x.dim, {{name, {x.width()}, start, false}}, {},
                       std::move(options));
}

Slice log_decay(LayerBuilder& builder, const std::string& name, const Slice& step) {
  const Init start{Init::Kind::kLogUniform, 1.0f, 0, 16.0f};
  return builder.stage(kDecay, {step}, step.heads, step.dim, {{name, {step.heads}, start, false}});
}

}  // namespace tarn::mixers
