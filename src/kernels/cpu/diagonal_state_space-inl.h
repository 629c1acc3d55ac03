// Complex numbers of one block of channels, compiled once per target.
#if defined(TARN_KERNELS_CPU_DIAGONAL_STATE_SPACE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_DIAGONAL_STATE_SPACE_INL_H_
#undef TARN_KERNELS_CPU_DIAGONAL_STATE_SPACE_INL_H_
#else
#define TARN_KERNELS_CPU_DIAGONAL_STATE_SPACE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/channel_blocks-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/diagonal_scan.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

struct ComplexVec {
  VecF32 re, im;
};

/// Element n of a [N][re | im][kBlock] block, vector `v`.
HWY_INLINE ComplexVec load_complex(const float* block, int64_t n, int v) {
  const float* at = block + 2 * n * kBlock + v * kLanes;
  return {hn::Load(F32(), at), hn::Load(F32(), at + kBlock)};
}
HWY_INLINE void store_complex(const ComplexVec& x, float* block, int64_t n, int v) {
  float* at = block + 2 * n * kBlock + v * kLanes;
  hn::Store(x.re, F32(), at);
  hn::Store(x.im, F32(), at + kBlock);
}

/// x·y + addend.
HWY_INLINE ComplexVec multiply_add(const ComplexVec& x, const ComplexVec& y,
                                   const ComplexVec& addend) {
  return {hn::NegMulAdd(x.im, y.im, hn::MulAdd(x.re, y.re, addend.re)),
          hn::MulAdd(x.im, y.re, hn::MulAdd(x.re, y.im, addend.im))};
}
/// x·conj(y) + addend.
HWY_INLINE ComplexVec multiply_conjugate_add(const ComplexVec& x, const ComplexVec& y,
                                             const ComplexVec& addend) {
  return {hn::MulAdd(x.im, y.im, hn::MulAdd(x.re, y.re, addend.re)),
          hn::NegMulAdd(x.re, y.im, hn::MulAdd(x.im, y.re, addend.im))};
}
/// x·real.
HWY_INLINE ComplexVec scale(const ComplexVec& x, VecF32 real) {
  return {hn::Mul(x.re, real), hn::Mul(x.im, real)};
}
/// x·real + addend.
HWY_INLINE ComplexVec scale_add(const ComplexVec& x, VecF32 real, const ComplexVec& addend) {
  return {hn::MulAdd(x.re, real, addend.re), hn::MulAdd(x.im, real, addend.im)};
}

/// A block's parameters, [N][re | im][kBlock].
struct StateSpaceBlock {
  int64_t state_dim = 0;
  float* transition = nullptr;
  float* input = nullptr;
  float* c = nullptr;  ///< 2·C
  float* d = nullptr;

  void load(const DiagonalStateSpaceInputs& inputs, int64_t channel, int64_t count) const {
    load_planes(inputs.transition, 2 * state_dim, channel, count, transition);
    load_planes(inputs.input, 2 * state_dim, channel, count, input);
    load_planes(inputs.c, 2 * state_dim, channel, count, c);
    for (int64_t i = 0; i < 2 * state_dim * kBlock; ++i) c[i] *= 2.0f;
    load_planes(inputs.d, 1, channel, count, d);
  }
};

/// One state element's coefficients, and its next value.
struct StateSpaceElement {
  HWY_INLINE StateSpaceElement(const StateSpaceBlock& block, int64_t n, int v)
      : transition(load_complex(block.transition, n, v)),
        input(load_complex(block.input, n, v)),
        c(load_complex(block.c, n, v)) {}
  HWY_INLINE ComplexVec next(const ComplexVec& h, VecF32 u) const {
    return multiply_add(transition, h, scale(input, u));
  }
  ComplexVec transition, input, c;
};

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_DIAGONAL_STATE_SPACE_INL_H_
