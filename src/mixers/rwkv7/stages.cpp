#include <cmath>
#include <utility>

#include "mixers/common/stage_math.h"
#include "mixers/rwkv7/rwkv7.h"

namespace tarn::mixers::rwkv7 {
namespace {

template <class T>
void scale_forward(const StageArgs<T>& args) {
  const int64_t width = args.stage->out.width();
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* x = args.inputs[0].at(row, 0);
    T* y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = x[c] * args.params[0][c];
  }
}

void scale_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* x = forward.inputs[0].at(row, 0);
    const float* dy = args.dout.at(row, 0);
    float* dx = args.dinputs[0].at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      dx[c] = dy[c] * forward.params[0][c];
      args.dparams[0][c] += dy[c] * x[c];
    }
  }
}

template <class T>
void key_forward(const StageArgs<T>& args) {
  const int64_t width = args.stage->out.width();
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* k = args.inputs[0].at(row, 0);
    const T* a = args.inputs[1].at(row, 0);
    T* y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      y[c] = k[c] * (T(1) + (a[c] - T(1)) * args.params[0][c]);
    }
  }
}

void key_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* k = forward.inputs[0].at(row, 0);
    const float* a = forward.inputs[1].at(row, 0);
    const float* dy = args.dout.at(row, 0);
    float* dk = args.dinputs[0].at(row, 0);
    float* da = args.dinputs[1].at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      const float weight = forward.params[0][c];
      dk[c] = dy[c] * (1.0f + (a[c] - 1.0f) * weight);
      da[c] = dy[c] * k[c] * weight;
      args.dparams[0][c] += dy[c] * k[c] * (a[c] - 1.0f);
    }
  }
}

template <class T>
void residual_forward(const StageArgs<T>& args) {
  const int64_t width = args.stage->out.width();
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* v = args.inputs[0].at(row, 0);
    const T* first = args.inputs[1].at(row, 0);
    const T* gate = args.inputs[2].at(row, 0);
    T* y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = v[c] + (first[c] - v[c]) * sigmoid(gate[c]);
  }
}

void residual_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* v = forward.inputs[0].at(row, 0);
    const float* first = forward.inputs[1].at(row, 0);
    const float* gate = forward.inputs[2].at(row, 0);
    const float* dy = args.dout.at(row, 0);
    float* dv = args.dinputs[0].at(row, 0);
    float* dfirst = args.dinputs[1].at(row, 0);
    float* dgate = args.dinputs[2].at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      const float share = sigmoid(gate[c]);
      dv[c] = dy[c] * (1.0f - share);
      dfirst[c] = dy[c] * share;
      dgate[c] = dy[c] * (first[c] - v[c]) * share * (1.0f - share);
    }
  }
}

struct NormOptions final : StageOptions {
  double eps = 0.0;
};

/// Mean, and 1/√(variance + eps), of one head.
template <class T>
std::pair<T, T> moments(const Stage& stage, const T* x) {
  const int64_t dim = stage.out.dim;
  const auto size = static_cast<T>(dim);
  T mean = 0;
  for (int64_t c = 0; c < dim; ++c) mean += x[c];
  mean /= size;
  T squares = 0;
  for (int64_t c = 0; c < dim; ++c) squares += (x[c] - mean) * (x[c] - mean);
  const auto eps = static_cast<T>(static_cast<const NormOptions&>(*stage.options).eps);
  return {mean, T(1) / std::sqrt(squares / size + eps)};
}

template <class T>
void norm_forward(const StageArgs<T>& args) {
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const T* x = args.inputs[0].at(row, h);
      const T* weight = args.params[0] + h * out.dim;
      const T* bias = args.params[1] + h * out.dim;
      T* y = args.out.at(row, h);
      const auto [mean, scale] = moments(*args.stage, x);
      for (int64_t c = 0; c < out.dim; ++c) y[c] = (x[c] - mean) * scale * weight[c] + bias[c];
    }
  }
}

/// With x̂ = s·(x − mean) and g = dy·weight: dx = s·(g − mean(g) − x̂·mean(g·x̂)).
void norm_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const Slice& out = forward.stage->out;
  const auto dim = static_cast<float>(out.dim);
  for (int64_t row = forward.first; row < forward.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const float* x = forward.inputs[0].at(row, h);
      const float* weight = forward.params[0] + h * out.dim;
      float* dweight = args.dparams[0] + h * out.dim;
      float* dbias = args.dparams[1] + h * out.dim;
      const float* dy = args.dout.at(row, h);
      float* dx = args.dinputs[0].at(row, h);
      const auto [mean, scale] = moments(*forward.stage, x);
      float sum = 0.0f;
      float along = 0.0f;
      for (int64_t c = 0; c < out.dim; ++c) {
        const float normed = (x[c] - mean) * scale;
        sum += dy[c] * weight[c];
        along += dy[c] * weight[c] * normed;
        dweight[c] += dy[c] * normed;
        dbias[c] += dy[c];
      }
      for (int64_t c = 0; c < out.dim; ++c) {
        const float normed = (x[c] - mean) * scale;
        dx[c] = scale * (dy[c] * weight[c] - sum / dim - normed * along / dim);
      }
    }
  }
}

/// Σ r ∘ k ∘ weight of one head.
template <class T>
T bonus_of(int64_t dim, const T* r, const T* k, const T* weight) {
  T sum = 0;
  for (int64_t c = 0; c < dim; ++c) sum += r[c] * k[c] * weight[c];
  return sum;
}

template <class T>
void bonus_forward(const StageArgs<T>& args) {
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const T* x = args.inputs[0].at(row, h);
      const T* v = args.inputs[3].at(row, h);
      T* y = args.out.at(row, h);
      const T bonus = bonus_of(out.dim, args.inputs[1].at(row, h), args.inputs[2].at(row, h),
                               args.params[0] + h * out.dim);
      for (int64_t c = 0; c < out.dim; ++c) y[c] = x[c] + bonus * v[c];
    }
  }
}

void bonus_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const Slice& out = forward.stage->out;
  for (int64_t row = forward.first; row < forward.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const float* r = forward.inputs[1].at(row, h);
      const float* k = forward.inputs[2].at(row, h);
      const float* v = forward.inputs[3].at(row, h);
      const float* weight = forward.params[0] + h * out.dim;
      float* dweight = args.dparams[0] + h * out.dim;
      const float* dy = args.dout.at(row, h);
      const float bonus = bonus_of(out.dim, r, k, weight);
      float dbonus = 0.0f;
      for (int64_t c = 0; c < out.dim; ++c) dbonus += dy[c] * v[c];
      for (int64_t c = 0; c < out.dim; ++c) {
        args.dinputs[0].at(row, h)[c] = dy[c];
        args.dinputs[1].at(row, h)[c] = dbonus * k[c] * weight[c];
        args.dinputs[2].at(row, h)[c] = dbonus * r[c] * weight[c];
        args.dinputs[3].at(row, h)[c] = dy[c] * bonus;
        dweight[c] += dbonus * r[c] * k[c];
      }
    }
  }
}

void scale_forward_f32(const StageArgs<float>& args) noexcept { scale_forward(args); }
void key_forward_f32(const StageArgs<float>& args) noexcept { key_forward(args); }
void residual_forward_f32(const StageArgs<float>& args) noexcept { residual_forward(args); }
void norm_forward_f32(const StageArgs<float>& args) noexcept { norm_forward(args); }
void bonus_forward_f32(const StageArgs<float>& args) noexcept { bonus_forward(args); }

constexpr StageDef kScale{"scale_channels", true, scale_forward_f32, scale_forward<double>,
                          scale_backward};
constexpr StageDef kKey{"replacement_key", true, key_forward_f32, key_forward<double>,
                        key_backward};
constexpr StageDef kResidual{"value_residual", true, residual_forward_f32, residual_forward<double>,
                             residual_backward};
constexpr StageDef kNorm{"group_norm", true, norm_forward_f32, norm_forward<double>, norm_backward};
constexpr StageDef kBonus{"bonus", true, bonus_forward_f32, bonus_forward<double>, bonus_backward};

}  // namespace

Slice scale_channels(LayerBuilder& builder, const std::string& name, const Slice& x, Init start) {
  return builder.stage(kScale, {x}, x.heads, x.dim, {{name, {x.width()}, std::move(start), false}});
}

Slice replacement_key(LayerBuilder& builder, const std::string& name, const Slice& k,
                      const Slice& a, Init start) {
  return builder.stage(kKey, {k, a}, k.heads, k.dim,
                       {{name, {k.width()}, std::move(start), false}});
}

Slice value_residual(LayerBuilder& builder, const Slice& v, const Slice& first, const Slice& gate) {
  return builder.stage(kResidual, {v, first, gate}, v.heads, v.dim);
}

Slice group_norm(LayerBuilder& builder, const std::string& name, const Slice& x, double eps,
                 float start) {
  auto options = std::make_shared<NormOptions>();
  options->eps = eps;
  return builder.stage(kNorm, {x}, x.heads, x.dim,
                       {{name + ".weight", {x.width()}, {Init::Kind::kConstant, start}, false},
                        {name + ".bias", {x.width()}, {Init::Kind::kConstant, 0.0f}, false}},
                       {}, std::move(options));
}

Slice add_bonus(LayerBuilder& builder, const std::string& name, const Slice& x, const Slice& r,
                const Slice& k, const Slice& v, float start) {
  return builder.stage(kBonus, {x, r, k, v}, x.heads, x.dim,
                       {{name, {x.width()}, {Init::Kind::kConstant, start}, false}});
}

}  // namespace tarn::mixers::rwkv7
