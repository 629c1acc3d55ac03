#include "kernels/norm.h"

#include <cmath>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels::HWY_NAMESPACE {

/// Σ x[i], or Σ (x[i] − mean)² when `kSquares`, with four chains of vectors and a scalar tail.
template <bool kSquares>
HWY_INLINE float row_sum(int64_t dim, const float* x, float mean) {
  const F32 d;
  using V = VecF32;
  const V vmean = hn::Set(d, mean);
  V sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
    const V x0 = hn::LoadU(d, x + i);
    const V x1 = hn::LoadU(d, x + i + kLanes);
    const V x2 = hn::LoadU(d, x + i + 2 * kLanes);
    const V x3 = hn::LoadU(d, x + i + 3 * kLanes);
    if constexpr (kSquares) {
      const V c0 = hn::Sub(x0, vmean), c1 = hn::Sub(x1, vmean);
      const V c2 = hn::Sub(x2, vmean), c3 = hn::Sub(x3, vmean);
      sum0 = hn::MulAdd(c0, c0, sum0);
      sum1 = hn::MulAdd(c1, c1, sum1);
      sum2 = hn::MulAdd(c2, c2, sum2);
      sum3 = hn::MulAdd(c3, c3, sum3);
    } else {
      sum0 = hn::Add(x0, sum0);
      sum1 = hn::Add(x1, sum1);
      sum2 = hn::Add(x2, sum2);
      sum3 = hn::Add(x3, sum3);
    }
  }
  for (; i + kLanes <= dim; i += kLanes) {
    const V x0 = hn::LoadU(d, x + i);
    const V c0 = hn::Sub(x0, vmean);
    sum0 = kSquares ? hn::MulAdd(c0, c0, sum0) : hn::Add(x0, sum0);
  }
  const V total = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  float sum = hn::GetLane(hn::SumOfLanes(d, total));
  for (; i < dim; ++i) sum += kSquares ? (x[i] - mean) * (x[i] - mean) : x[i];
  return sum;
}

/// out = (x − mean)·scale·weight + bias (null bias: none) for one row.
HWY_INLINE void scale_row(int64_t dim, const float* x, float mean, float scale, const float* weight,
                          const float* bias, float* out) {
  const F32 d;
  using V = VecF32;
  const V vmean = hn::Set(d, mean);
  const V vscale = hn::Set(d, scale);
  int64_t i = 0;
  if (bias != nullptr) {
    for (; i + kLanes <= dim; i += kLanes) {
      const V centred = hn::Mul(hn::Sub(hn::LoadU(d, x + i), vmean), vscale);
      hn::StoreU(hn::MulAdd(centred, hn::LoadU(d, weight + i), hn::LoadU(d, bias + i)), d, out + i);
    }
    for (; i < dim; ++i) out[i] = std::fma((x[i] - mean) * scale, weight[i], bias[i]);
  } else {
    for (; i + kLanes <= dim; i += kLanes) {
      const V scaled = hn::Mul(hn::LoadU(d, x + i), vscale);
      hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, out + i);
    }
    for (; i < dim; ++i) out[i] = x[i] * scale * weight[i];
  }
}

void layer_norm_impl(int64_t rows, int64_t dim, const float* x, int64_t x_stride,
                     const float* weight, const float* bias, float eps, float* out,
                     int64_t out_stride) {
  const float count = static_cast<float>(dim);
  for (int64_t row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    const float mean = row_sum<false>(dim, x, 0.0f) / count;
    const float variance = row_sum<true>(dim, x, mean) / count;
    scale_row(dim, x, mean, 1.0f / std::sqrt(variance + eps), weight, bias, out);
  }
}

void rms_norm_impl(int64_t rows, int64_t dim, const float* x, int64_t x_stride, const float* weight,
                   float eps, float* out, int64_t out_stride) {
  const float count = static_cast<float>(dim);
  for (int64_t row = 0; row < rows; ++row, x += x_stride, out += out_stride) {
    const float mean_square = row_sum<true>(dim, x, 0.0f) / count;
    scale_row(dim, x, 0.0f, 1.0f / std::sqrt(mean_square + eps), weight, nullptr, out);
  }
}

}  // namespace tarn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

HWY_EXPORT(layer_norm_impl);
HWY_EXPORT(rms_norm_impl);

void layer_norm(int64_t rows, int64_t dim, const float* x, int64_t x_stride, const float* weight,
                const float* bias, float eps, float* out, int64_t out_stride) noexcept {
  HWY_DYNAMIC_DISPATCH(layer_norm_impl)
  (rows, dim, x, x_stride, weight, bias, eps, out, out_stride);
}

void rms_norm(int64_t rows, int64_t dim, const float* x, int64_t x_stride, const float* weight,
              float eps, float* out, int64_t out_stride) noexcept {
  HWY_DYNAMIC_DISPATCH(rms_norm_impl)(rows, dim, x, x_stride, weight, eps, out, out_stride);
}

}  // namespace tarn::kernels
#endif
