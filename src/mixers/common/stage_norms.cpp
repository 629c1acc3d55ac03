// Stages that scale each head by its norm.
#include <algorithm>

#include "kernels/norm.h"
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

double sum_of_squares(int64_t dim, const double* x) {
  double sum = 0.0;
  for (int64_t c = 0; c < dim; ++c) sum += x[c] * x[c];
  return sum;
}

double l2_scale(const NormOptions& options, double squares) {
  return options.clamped ? 1.0 / std::max(std::sqrt(squares), options.eps)
                         : 1.0 / std::sqrt(squares + options.eps);
}

void l2_reference(const StageArgs<double>& args) {
  const NormOptions& options = options_of(*args.stage);
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const double* x = args.inputs[0].at(row, h);
      double* y = args.out.at(row, h);
      const double scale = l2_scale(options, sum_of_squares(out.dim, x));
      for (int64_t c = 0; c < out.dim; ++c) y[c] = scale * x[c];
    }
  }
}

void l2_forward_f32(const StageArgs<float>& args) noexcept {
  const NormOptions& options = options_of(*args.stage);
  const Slice& out = args.stage->out;
  for (int64_t h = 0; h < out.heads; ++h) {
    kernels::l2_norm(args.end - args.first, out.dim, block_of(args.inputs[0], args.first, h),
                     static_cast<float>(options.eps), options.clamped,
                     block_of(args.out, args.first, h));
  }
}

void l2_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const NormOptions& options = options_of(*forward.stage);
  const Slice& out = forward.stage->out;
  const int64_t first = forward.first;
  const kernels::Heads<const float> y = forward.out;
  for (int64_t h = 0; h < out.heads; ++h) {
    kernels::l2_norm_gradient(forward.end - first, out.dim, block_of(forward.inputs[0], first, h),
                              block_of(y, first, h), static_cast<float>(options.eps),
                              options.clamped, block_of(args.dout, first, h),
                              block_of(args.dinputs[0], first, h));
  }
}

constexpr StageDef kL2Norm{"l2_norm", true, l2_forward_f32, l2_reference, l2_backward};

int64_t first_weight(const Stage& stage, int64_t head) {
  return options_of(stage).own_weights ? head * stage.out.dim : 0;
}

void rms_forward(const StageArgs<float>& args) noexcept {
  const Slice& out = args.stage->out;
  for (int64_t h = 0; h < out.heads; ++h) {
    kernels::rms_norm(args.end - args.first, out.dim, args.inputs[0].at(args.first, h),
                      args.inputs[0].row_stride, args.params[0] + first_weight(*args.stage, h),
                      static_cast<float>(options_of(*args.stage).eps), args.out.at(args.first, h),
                      args.out.row_stride);
  }
}

void rms_reference(const StageArgs<double>& args) {
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      kernels::reference::rms_norm(out.dim, args.inputs[0].at(row, h),
                                   args.params[0] + first_weight(*args.stage, h),
                                   options_of(*args.stage).eps, args.out.at(row, h));
    }
  }
}

void rms_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const Slice& out = forward.stage->out;
  const int64_t first = forward.first;
  for (int64_t h = 0; h < out.heads; ++h) {
    const int64_t weight = first_weight(*forward.stage, h);
    kernels::rms_norm_gradient(forward.end - first, out.dim, block_of(forward.inputs[0], first, h),
                               forward.params[0] + weight,
                               static_cast<float>(options_of(*forward.stage).eps),
                               block_of(args.dout, first, h), block_of(args.dinputs[0], first, h),
                               args.dparams[0] + weight);
  }
}

constexpr StageDef kRmsNorm{"rms_norm", true, rms_forward, rms_reference, rms_backward};

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
