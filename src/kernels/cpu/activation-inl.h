// Activation functions on vectors of any width; included once per SIMD target.
#if defined(TARN_KERNELS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_ACTIVATION_INL_H_
#undef TARN_KERNELS_CPU_ACTIVATION_INL_H_
#else
#define TARN_KERNELS_CPU_ACTIVATION_INL_H_
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/activation.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels::HWY_NAMESPACE {

/// Φ(x) = ½ + x·P(x²)/Q(x²), a least-maximum fit of the normal distribution function on |x| ≤ 5.5
/// and constant beyond.
template <class D, class V>
HWY_INLINE V normal_below(D d, V x) {
  const V limited = hn::Min(hn::Max(x, hn::Set(d, -5.5f)), hn::Set(d, 5.5f));
  const V z = hn::Mul(limited, limited);
  V p = hn::Set(d, -1.6898262344966497e-08f);
  p = hn::MulAdd(p, z, hn::Set(d, 5.941486051597167e-06f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.00047079185605980456f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.006524829193949699f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.06612803041934967f));
  p = hn::MulAdd(p, z, hn::Set(d, 0.3989429771900177f));
  V q = hn::Set(d, 0.00015655589231755584f);
  q = hn::MulAdd(q, z, hn::Set(d, 0.0036305899266153574f));
  q = hn::MulAdd(q, z, hn::Set(d, 0.04676543176174164f));
  q = hn::MulAdd(q, z, hn::Set(d, 0.3324269950389862f));
  q = hn::MulAdd(q, z, hn::Set(d, 1.0f));
  return hn::MulAdd(limited, hn::Div(p, q), hn::Set(d, 0.5f));
}

/// x·Φ(x). |error| ≤ 4.1e-7·max(1, |x|) in f32 (measured against double).
template <class D, class V>
HWY_INLINE V gelu_erf(D d, V x) {
  return hn::Mul(x, normal_below(d, x));
}

/// x/(1 + exp(−y)): x·σ(y). The exponent is capped so that the quotient stays a finite zero.
template <class D, class V>
HWY_INLINE V times_sigmoid(D d, V x, V y) {
  const V negative = hn::Min(hn::Neg(y), hn::Set(d, 88.0f));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), hn::Exp(d, negative)));
}

/// ½x(1 + tanh(√(2/π)(x + 0.044715x³))) = x·σ(2√(2/π)(x + 0.044715x³)).
template <class D, class V>
HWY_INLINE V gelu_tanh(D d, V x) {
  const V limited = hn::Min(hn::Max(x, hn::Set(d, -1e4f)), hn::Set(d, 1e4f));
  const V square = hn::Mul(limited, limited);
  const V inner = hn::MulAdd(square, hn::Set(d, 0.044715f), hn::Set(d, 1.0f));
  return times_sigmoid(d, x, hn::Mul(hn::Mul(limited, inner), hn::Set(d, 1.5957691216057308f)));
}

template <Activation kActivation, class D, class V>
HWY_INLINE V activate(D d, V x) {
  // A comparison, because Max drops NaN on some targets.
  if constexpr (kActivation == Activation::kRelu)
    return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
  if constexpr (kActivation == Activation::kGelu) return gelu_erf(d, x);
  if constexpr (kActivation == Activation::kGeluTanh) return gelu_tanh(d, x);
  if constexpr (kActivation == Activation::kSilu) return times_sigmoid(d, x, x);
  return x;
}

template <Activation kActivation>
HWY_NOINLINE void activate_rows(int64_t rows, int64_t cols, float* x, int64_t stride) {
  const F32 d;
  for (int64_t row = 0; row < rows; ++row, x += stride) {
    int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) {
      hn::StoreU(activate<kActivation>(d, hn::LoadU(d, x + i)), d, x + i);
    }
    if (i < cols) {
      store_partial(activate<kActivation>(d, load_partial(x + i, cols - i)), x + i, cols - i);
    }
  }
}

/// x[r, i] = f(x[r, i]); the bits of an element do not depend on its place.
inline void activate_block(Activation activation, int64_t rows, int64_t cols, float* x,
                           int64_t stride) {
  switch (activation) {
    case Activation::kNone: return;
    case Activation::kRelu: return activate_rows<Activation::kRelu>(rows, cols, x, stride);
    case Activation::kGelu: return activate_rows<Activation::kGelu>(rows, cols, x, stride);
    case Activation::kGeluTanh: return activate_rows<Activation::kGeluTanh>(rows, cols, x, stride);
    case Activation::kSilu: return activate_rows<Activation::kSilu>(rows, cols, x, stride);
  }
}

}  // namespace tarn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
