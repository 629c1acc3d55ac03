// What the forms of softmax attention share; included once per SIMD target.
#if defined(TARN_KERNELS_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_SOFTMAX_INL_H_
#undef TARN_KERNELS_CPU_SOFTMAX_INL_H_
#else
#define TARN_KERNELS_CPU_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/softmax_attention.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// 2^x for x ≤ 0: 2^0 is exactly 1, everything below 2^-125 is 0 (also −∞), NaN stays NaN.
/// Relative error ≤ 2e-7. The fraction's polynomial is a least-maximum fit on [−½, ½].
HWY_INLINE VecF32 exp2_nonpositive(F32 d, VecF32 x) {
  const hn::RebindToSigned<F32> di;
  const VecF32 limited = hn::Max(hn::Set(d, -126.0f), x);
  // Adding 1.5·2^23 leaves round(x) in the low bits of the mantissa.
  const VecF32 shifted = hn::Add(limited, hn::Set(d, 12582912.0f));
  const VecF32 f = hn::Sub(limited, hn::Sub(shifted, hn::Set(d, 12582912.0f)));
  VecF32 p = hn::Set(d, 0.001326472731307149f);
  p = hn::MulAdd(p, f, hn::Set(d, 0.009671512991189957f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.05550733581185341f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022242426872253f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931470036506653f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const VecF32 y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -125.0f)), y);
}

/// to[i, r] = factor·from[r, i] for r < rows; columns from `rows` up to to_stride become 0.
HWY_INLINE void transpose_scaled(int64_t rows, int64_t dim, const float* from, int64_t from_stride,
                                 float factor, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = from + r * from_stride;
    for (int64_t i = 0; i < dim; ++i) to[i * to_stride + r] = factor * row[i];
  }
  if (rows == to_stride) return;
  for (int64_t i = 0; i < dim; ++i)
    std::fill(to + i * to_stride + rows, to + (i + 1) * to_stride, 0.0f);
}

/// Scores s [keys, columns] of entries `first`, first + 1, … of a run: entry (j, q) becomes −∞ where
/// query q does not see entry first + j.
HWY_INLINE void hide_unseen(int64_t keys, int64_t columns, int64_t first, const KeyRun& run,
                            float* s, int64_t s_stride) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const VecF32 hidden = hn::Set(d, kMinusInfinity);
  for (int64_t c = 0; c < columns; c += kLanes) {
    const auto from = hn::LoadU(di, run.from + c);
    const auto to = hn::LoadU(di, run.to + c);
    for (int64_t j = 0; j < keys; ++j) {
      const auto entry = hn::Set(di, static_cast<int32_t>(first + j));
      const auto seen = hn::AndNot(hn::Lt(entry, from), hn::Lt(entry, to));
      float* at = s + j * s_stride + c;
      hn::Store(hn::IfThenElse(hn::RebindMask(d, seen), hn::Load(d, at), hidden), d, at);
    }
  }
}

/// Σ a[i]·b[i].
HWY_INLINE float dot_rows(int64_t size, const float* a, const float* b) {
  const F32 d;
  VecF32 sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  if (i < size) sum = hn::MulAdd(load_partial(a + i, size - i), load_partial(b + i, size - i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// x[i] *= factor.
HWY_INLINE void scale_span(int64_t size, float factor, float* x) {
  const F32 d;
  const VecF32 f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), f), d, x + i);
  if (i < size) store_partial(hn::Mul(load_partial(x + i, size - i), f), x + i, size - i);
}

/// to[i] = factor·from[i].
HWY_INLINE void copy_scaled(int64_t size, float factor, const float* from, float* to) {
  const F32 d;
  const VecF32 f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, from + i), f), d, to + i);
  if (i < size) store_partial(hn::Mul(load_partial(from + i, size - i), f), to + i, size - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_SOFTMAX_INL_H_
