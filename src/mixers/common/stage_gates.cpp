// Stages that treat every channel on its own.
#include <algorithm>

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

template <class T>
void function_forward(const StageArgs<T>& args) {
  const FunctionOptions& options = function_of(*args.stage);
  const int64_t width = args.stage->out.width();
  const T scale = static_cast<T>(options.scale);
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* x = args.inputs[0].at(row, 0);
    T* y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = scale * gate_value(options.function, x[c]);
  }
}

void function_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const FunctionOptions& options = function_of(*forward.stage);
  const auto scale = static_cast<float>(options.scale);
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* x = forward.inputs[0].at(row, 0);
    const float* dy = args.dout.at(row, 0);
    float* dx = args.dinputs[0].at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      dx[c] = dy[c] * scale * gate_slope(options.function, x[c]);
    }
  }
}

void function_forward_f32(const StageArgs<float>& args) noexcept { function_forward(args); }
constexpr StageDef kFunction{"function", true, function_forward_f32, function_forward<double>,
                             function_backward};

template <class T>
void gate_forward(const StageArgs<T>& args) {
  const GateFunction function = function_of(*args.stage).function;
  const int64_t width = args.stage->out.width();
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* x = args.inputs[0].at(row, 0);
    const T* gate = args.inputs[1].at(row, 0);
    T* y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = x[c] * gate_value(function, gate[c]);
  }
}

void gate_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const GateFunction function = function_of(*forward.stage).function;
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* x = forward.inputs[0].at(row, 0);
    const float* gate = forward.inputs[1].at(row, 0);
    const float* dy = args.dout.at(row, 0);
    float* dx = args.dinputs[0].at(row, 0);
    float* dgate = args.dinputs[1].at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      dx[c] = dy[c] * gate_value(function, gate[c]);
      dgate[c] = dy[c] * x[c] * gate_slope(function, gate[c]);
    }
  }
}

void gate_forward_f32(const StageArgs<float>& args) noexcept { gate_forward(args); }
constexpr StageDef kGate{"gate", true, gate_forward_f32, gate_forward<double>, gate_backward};

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

struct StepOptions final : StageOptions {
  double low = 0.0;
  double high = 0.0;
};

const StepOptions& step_of(const Stage& stage) {
  return static_cast<const StepOptions&>(*stage.options);
}

template <class T>
void step_forward(const StageArgs<T>& args) {
  const StepOptions& options = step_of(*args.stage);
  const int64_t width = args.stage->out.width();
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* x = args.inputs[0].at(row, 0);
    T* y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      y[c] = std::clamp(softplus(x[c] + args.params[0][c]), T(options.low), T(options.high));
    }
  }
}

void step_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const StepOptions& options = step_of(*forward.stage);
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* x = forward.inputs[0].at(row, 0);
    const float* dy = args.dout.at(row, 0);
    float* dx = args.dinputs[0].at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      const float sum = x[c] + forward.params[0][c];
      const double step = softplus(sum);
      const bool inside = step >= options.low && step <= options.high;
      dx[c] = inside ? dy[c] * sigmoid(sum) : 0.0f;
      args.dparams[0][c] += dx[c];
    }
  }
}

void step_forward_f32(const StageArgs<float>& args) noexcept { step_forward(args); }
constexpr StageDef kStep{"step_size", true, step_forward_f32, step_forward<double>, step_backward};

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
