// Gate functions and their slopes on vectors of any width; included once per SIMD target.
#if defined(TARN_KERNELS_CPU_GATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_GATES_INL_H_
#undef TARN_KERNELS_CPU_GATES_INL_H_
#else
#define TARN_KERNELS_CPU_GATES_INL_H_
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/gates.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// e = exp(−|x|) and 1/(1 + e): all that the smooth functions are made of.
struct Logistic {
  VecF32 e;
  VecF32 inverse;
};

HWY_INLINE Logistic logistic(VecF32 x) {
  const F32 d;
  const VecF32 e = exp_nonpositive(hn::Neg(hn::Abs(x)));
  return {e, hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), e))};
}

/// σ(x).
HWY_INLINE VecF32 sigmoid(VecF32 x) {
  const F32 d;
  const Logistic parts = logistic(x);
  return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), parts.inverse, hn::Mul(parts.e, parts.inverse));
}

/// log(1 + e^x) = max(x, 0) + log1p(exp(−|x|)).
HWY_INLINE VecF32 softplus(VecF32 x) {
  const F32 d;
  const VecF32 e = exp_nonpositive(hn::Neg(hn::Abs(x)));
  return hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, e));
}

/// tanh(x) = 2σ(2x) − 1 = sign(x)·(1 − e)/(1 + e) with e = exp(−2|x|).
HWY_INLINE VecF32 tanh_of(VecF32 x) {
  const F32 d;
  const VecF32 one = hn::Set(d, 1.0f);
  // Near zero 1 − e would cancel: x − x³/3 + 2x⁵/15 there.
  const VecF32 square = hn::Mul(x, x);
  VecF32 series = hn::MulAdd(square, hn::Set(d, -17.0f / 315.0f), hn::Set(d, 2.0f / 15.0f));
  series = hn::MulAdd(series, square, hn::Set(d, -1.0f / 3.0f));
  series = hn::MulAdd(hn::Mul(series, square), x, x);
  const VecF32 twice = hn::Abs(hn::Add(x, x));
  const VecF32 e = exp_nonpositive(hn::Neg(twice));
  const VecF32 quotient = hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, 0.25f)), series, quotient);
}

template <GateFunction kFunction>
HWY_INLINE VecF32 gate_of(VecF32 x) {
  const F32 d;
  if constexpr (kFunction == GateFunction::kSigmoid) return sigmoid(x);
  if constexpr (kFunction == GateFunction::kSilu) return hn::Mul(x, sigmoid(x));
  if constexpr (kFunction == GateFunction::kTanh) return tanh_of(x);
  if constexpr (kFunction == GateFunction::kGelu) return gelu_erf(d, x);
  if constexpr (kFunction == GateFunction::kLogSigmoid) return hn::Neg(softplus(hn::Neg(x)));
  if constexpr (kFunction == GateFunction::kSoftplus) return softplus(x);
  if constexpr (kFunction == GateFunction::kSquaredRelu) {
    const VecF32 positive = hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x);
    return hn::Mul(positive, positive);
  }
  return x;
}

template <GateFunction kFunction>
HWY_INLINE VecF32 slope_of(VecF32 x) {
  const F32 d;
  const VecF32 one = hn::Set(d, 1.0f);
  if constexpr (kFunction == GateFunction::kSigmoid) {
    const Logistic parts = logistic(x);  // σ(x)·σ(−x) = e/(1 + e)²
    return hn::Mul(parts.e, hn::Mul(parts.inverse, parts.inverse));
  }
  if constexpr (kFunction == GateFunction::kSilu) {
    return hn::Mul(sigmoid(x), hn::MulAdd(x, sigmoid(hn::Neg(x)), one));
  }
  if constexpr (kFunction == GateFunction::kTanh) {
    const VecF32 t = tanh_of(x);
    return hn::NegMulAdd(t, t, one);
  }
  if constexpr (kFunction == GateFunction::kGelu) {
    const VecF32 half_square = hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f));
    const VecF32 density = hn::Mul(exp_nonpositive(half_square), hn::Set(d, 0.3989422804f));
    return hn::MulAdd(x, density, normal_below(d, x));
  }
  if constexpr (kFunction == GateFunction::kLogSigmoid) return sigmoid(hn::Neg(x));
  if constexpr (kFunction == GateFunction::kSoftplus) return sigmoid(x);
  if constexpr (kFunction == GateFunction::kSquaredRelu) {
    return hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), hn::Add(x, x));
  }
  return one;
}

/// Calls body.template operator()<kFunction>() for the function that is known at run time only.
template <class Body>
HWY_INLINE void with_function(GateFunction function, const Body& body) {
  switch (function) {
    case GateFunction::kIdentity: body.template operator()<GateFunction::kIdentity>(); return;
    case GateFunction::kSigmoid: body.template operator()<GateFunction::kSigmoid>(); return;
    case GateFunction::kSilu: body.template operator()<GateFunction::kSilu>(); return;
    case GateFunction::kTanh: body.template operator()<GateFunction::kTanh>(); return;
    case GateFunction::kGelu: body.template operator()<GateFunction::kGelu>(); return;
    case GateFunction::kLogSigmoid: body.template operator()<GateFunction::kLogSigmoid>(); return;
    case GateFunction::kSquaredRelu: body.template operator()<GateFunction::kSquaredRelu>(); return;
    case GateFunction::kSoftplus: body.template operator()<GateFunction::kSoftplus>(); return;
  }
}

/// Calls body(column, load, store) for every vector of `width` channels, the last one partial:
/// load(pointer) and store(vector, pointer) touch the vector's own channels alone.
template <class Body>
HWY_INLINE void for_each_vector(int64_t width, const Body& body) {
  const F32 d;
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    body(
        c, [d](const float* from) HWY_ATTR { return hn::LoadU(d, from); },
        [d](VecF32 value, float* to) HWY_ATTR { hn::StoreU(value, d, to); });
  }
  if (c == width) return;
  const Tail tail(width - c);
  body(
      c, [&tail](const float* from) HWY_ATTR { return load_partial(from, tail); },
      [&tail](VecF32 value, float* to) HWY_ATTR { store_partial(value, to, tail); });
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_GATES_INL_H_
