// Stages that scale each head by its norm.
#include <algorithm>

#include "mixers/common/stage_math.h"
#include "mixers/common/stages.h"

namespace tarn::mixers {
namespace {

struct NormOptions final : StageOptions {
  double eps = 0.0;
  bool clamped = false;      ///< of l2_norm
  bool own_weights = false;  ///< of rms_norm
};

const NormOptions& options_of(const Stage& stage) {
  return static_cast<const NormOptions&>(*stage.options);
}

template <class T>
T sum_of_squares(int64_t dim, const T* x) {
  T sum = 0;
  for (int64_t c = 0; c < dim; ++c) sum += x[c] * x[c];
  return sum;
}

template <class T>
T l2_scale(const NormOptions& options, T squares) {
  return options.clamped ? T(1) / std::max(std::sqrt(squares), T(options.eps))
                         : T(1) / std::sqrt(squares + T(options.eps));
}

template <class T>
void l2_forward(const StageArgs<T>& args) {
  const NormOptions& options = options_of(*args.stage);
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const T* x = args.inputs[0].at(row, h);
      T* y = args.out.at(row, h);
      const T scale = l2_scale(options, sum_of_squares(out.dim, x));
      for (int64_t c = 0; c < out.dim; ++c) y[c] = scale * x[c];
    }
  }
}

/// y = s·x with s = (Σx² + ε)^(−1/2): dx = s·(dy − y·(dy·y)); at the clamp s is constant.
void l2_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const NormOptions& options = options_of(*forward.stage);
  const Slice& out = forward.stage->out;
  for (int64_t row = forward.first; row < forward.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const float* x = forward.inputs[0].at(row, h);
      const float* y = forward.out.at(row, h);
      const float* dy = args.dout.at(row, h);
      float* dx = args.dinputs[0].at(row, h);
      const float squares = sum_of_squares(out.dim, x);
      const float scale = l2_scale(options, squares);
      float along = 0.0f;
      for (int64_t c = 0; c < out.dim; ++c) along += dy[c] * y[c];
      if (options.clamped && std::sqrt(squares) <= static_cast<float>(options.eps)) along = 0.0f;
      for (int64_t c = 0; c < out.dim; ++c) dx[c] = scale * (dy[c] - y[c] * along);
    }
  }
}

void l2_forward_f32(const StageArgs<float>& args) noexcept { l2_forward(args); }
constexpr StageDef kL2Norm{"l2_norm", true, l2_forward_f32, l2_forward<double>, l2_backward};

template <class T>
void rms_forward(const StageArgs<T>& args) {
  const NormOptions& options = options_of(*args.stage);
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const T* x = args.inputs[0].at(row, h);
      const T* weight = args.params[0] + (options.own_weights ? h * out.dim : 0);
      T* y = args.out.at(row, h);
      const T scale =
          T(1) / std::sqrt(sum_of_squares(out.dim, x) / static_cast<T>(out.dim) + T(options.eps));
      for (int64_t c = 0; c < out.dim; ++c) y[c] = scale * x[c] * weight[c];
    }
  }
}

/// With x̂ = s·x and g = dy·weight: dx = s·(g − x̂·mean(g·x̂)).
void rms_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const NormOptions& options = options_of(*forward.stage);
  const Slice& out = forward.stage->out;
  const auto dim = static_cast<float>(out.dim);
  for (int64_t row = forward.first; row < forward.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const int64_t first = options.own_weights ? h * out.dim : 0;
      const float* x = forward.inputs[0].at(row, h);
      const float* weight = forward.params[0] + first;
      float* dweight = args.dparams[0] + first;
      const float* dy = args.dout.at(row, h);
      float* dx = args.dinputs[0].at(row, h);
      const float scale =
          1.0f / std::sqrt(sum_of_squares(out.dim, x) / dim + static_cast<float>(options.eps));
      float mean = 0.0f;
      for (int64_t c = 0; c < out.dim; ++c) mean += dy[c] * weight[c] * x[c];
      mean *= scale / dim;
      for (int64_t c = 0; c < out.dim; ++c) {
        dweight[c] += dy[c] * scale * x[c];
        dx[c] = scale * (dy[c] * weight[c] - scale * x[c] * mean);
      }
    }
  }
}

void rms_forward_f32(const StageArgs<float>& args) noexcept { rms_forward(args); }
constexpr StageDef kRmsNorm{"rms_norm", true, rms_forward_f32, rms_forward<double>, rms_backward};

}  // namespace

Slice l2_norm(LayerBuilder& builder, const Slice& x, double eps, bool clamped) {
  auto options = std::make_shared<NormOptions>();
  options->eps = eps;
  options->clamped = clamped;
  return builder.stage(kL2Norm, {x}, x.heads, x.dim, {}, {}, std::move(options));
}

Slice rms_norm(LayerBuilder& builder, const std::string& name, const Slice& x, double eps,
               bool own_weights) {
  auto options = std::make_shared<NormOptions>();
  options->eps = eps;
  options->own_weights = own_weights;
  const int64_t size = own_weights ? x.width() : x.dim;
  return builder.stage(kRmsNorm, {x}, x.heads, x.dim,
                       {{name + ".weight", {size}, {Init::Kind::kConstant, 1.0f}, false}}, {},
                       std::move(options));
}

}  // namespace tarn::mixers
