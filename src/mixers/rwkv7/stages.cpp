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
    const T* __restrict x = args.inputs[0].at(row, 0);
    const T* __restrict weight = args.params[0];
    T* __restrict y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = x[c] * weight[c];
  }
}

void scale_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* __restrict x = forward.inputs[0].at(row, 0);
    const float* __restrict weight = forward.params[0];
    const float* __restrict dy = args.dout.at(row, 0);
    float* __restrict dx = args.dinputs[0].at(row, 0);
    float* __restrict dweight = args.dparams[0];
    for (int64_t c = 0; c < width; ++c) {
      dx[c] = dy[c] * weight[c];
      dweight[c] += dy[c] * x[c];
    }
  }
}

template <class T>
void key_forward(const StageArgs<T>& args) {
  const int64_t width = args.stage->out.width();
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* __restrict k = args.inputs[0].at(row, 0);
    const T* __restrict a = args.inputs[1].at(row, 0);
    const T* __restrict weight = args.params[0];
    T* __restrict y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = k[c] * (T(1) + (a[c] - T(1)) * weight[c]);
  }
}

void key_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* __restrict k = forward.inputs[0].at(row, 0);
    const float* __restrict a = forward.inputs[1].at(row, 0);
    const float* __restrict weight = forward.params[0];
    const float* __restrict dy = args.dout.at(row, 0);
    float* __restrict dk = args.dinputs[0].at(row, 0);
    float* __restrict da = args.dinputs[1].at(row, 0);
    float* __restrict dweight = args.dparams[0];
    for (int64_t c = 0; c < width; ++c) {
      dk[c] = dy[c] * (1.0f + (a[c] - 1.0f) * weight[c]);
      da[c] = dy[c] * k[c] * weight[c];
      dweight[c] += dy[c] * k[c] * (a[c] - 1.0f);
    }
  }
}

template <class T>
void residual_forward(const StageArgs<T>& args) {
  const int64_t width = args.stage->out.width();
  for (int64_t row = args.first; row < args.end; ++row) {
    const T* __restrict v = args.inputs[0].at(row, 0);
    const T* __restrict first = args.inputs[1].at(row, 0);
    const T* __restrict share = args.inputs[2].at(row, 0);
    T* __restrict y = args.out.at(row, 0);
    for (int64_t c = 0; c < width; ++c) y[c] = v[c] + (first[c] - v[c]) * share[c];
  }
}

void residual_backward(const StageGradientArgs& args) noexcept {
  const StageArgs<float>& forward = args.forward;
  const int64_t width = forward.stage->out.width();
  for (int64_t row = forward.first; row < forward.end; ++row) {
    const float* __restrict v = forward.inputs[0].at(row, 0);
    const float* __restrict first = forward.inputs[1].at(row, 0);
    const float* __restrict share = forward.inputs[2].at(row, 0);
    const float* __restrict dy = args.dout.at(row, 0);
    float* __restrict dv = args.dinputs[0].at(row, 0);
    float* __restrict dfirst = args.dinputs[1].at(row, 0);
    float* __restrict dshare = args.dinputs[2].at(row, 0);
    for (int64_t c = 0; c < width; ++c) {
      dv[c] = dy[c] * (1.0f - share[c]);
      dfirst[c] = dy[c] * share[c];
      dshare[c] = dy[c] * (first[c] - v[c]);
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
  const T mean = sum_of<T>(dim, [x](int64_t c) { return x[c]; }) / size;
  const T squares = sum_of<T>(dim, [x, mean](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
  const auto eps = static_cast<T>(static_cast<const NormOptions&>(*stage.options).eps);
  return {mean, T(1) / std::sqrt(squares / size + eps)};
}

template <class T>
void norm_forward(const StageArgs<T>& args) {
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const T* __restrict x = args.inputs[0].at(row, h);
      const T* __restrict weight = args.params[0] + h * out.dim;
      const T* __restrict bias = args.params[1] + h * out.dim;
      T* __restrict y = args.out.at(row, h);
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
      const float* __restrict x = forward.inputs[0].at(row, h);
      const float* __restrict weight = forward.params[0] + h * out.dim;
      float* __restrict dweight = args.dparams[0] + h * out.dim;
      float* __restrict dbias = args.dparams[1] + h * out.dim;
      const float* __restrict dy = args.dout.at(row, h);
      float* __restrict dx = args.dinputs[0].at(row, h);
      const std::pair<float, float> of = moments(*forward.stage, x);
      const float mean = of.first;
      const float scale = of.second;
      const auto normed = [&](int64_t c) { return (x[c] - mean) * scale; };
      const float sum = sum_of<float>(out.dim, [&](int64_t c) { return dy[c] * weight[c]; });
      const float along =
          sum_of<float>(out.dim, [&](int64_t c) { return dy[c] * weight[c] * normed(c); });
      for (int64_t c = 0; c < out.dim; ++c) {
        dweight[c] += dy[c] * normed(c);
        dbias[c] += dy[c];
        dx[c] = scale * (dy[c] * weight[c] - sum / dim - normed(c) * along / dim);
      }
    }
  }
}

/// Σ r ∘ k ∘ weight of one head.
template <class T>
T bonus_of(int64_t dim, const T* r, const T* k, const T* weight) {
  return sum_of<T>(dim, [=](int64_t c) { return r[c] * k[c] * weight[c]; });
}

template <class T>
void bonus_forward(const StageArgs<T>& args) {
  const Slice& out = args.stage->out;
  for (int64_t row = args.first; row < args.end; ++row) {
    for (int64_t h = 0; h < out.heads; ++h) {
      const T* __restrict x = args.inputs[0].at(row, h);
      const T* __restrict v = args.inputs[3].at(row, h);
      T* __restrict y = args.out.at(row, h);
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
      const float* __restrict r = forward.inputs[1].at(row, h);
      const float* __restrict k = forward.inputs[2].at(row, h);
      const float* __restrict v = forward.inputs[3].at(row, h);
      const float* __restrict weight = forward.params[0] + h * out.dim;
      const float* __restrict dy = args.dout.at(row, h);
      float* __restrict dx = args.dinputs[0].at(row, h);
      float* __restrict dr = args.dinputs[1].at(row, h);
      float* __restrict dk = args.dinputs[2].at(row, h);
      float* __restrict dv = args.dinputs[3].at(row, h);
      float* __restrict dweight = args.dparams[0] + h * out.dim;
      const float bonus = bonus_of(out.dim, r, k, weight);
      const float dbonus = sum_of<float>(out.dim, [&](int64_t c) { return dy[c] * v[c]; });
      for (int64_t c = 0; c < out.dim; ++c) {
        dx[c] = dy[c];
        dr[c] = dbonus * k[c] * weight[c];
        dk[c] = dbonus * r[c] * weight[c];
        dv[c] = dy[c] * bonus;
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

Slice value_residual(LayerBuilder& builder, const Slice& v, const Slice& first,
                     const Slice& share) {
  return builder.stage(kResidual, {v, first, share}, v.heads, v.dim);
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
