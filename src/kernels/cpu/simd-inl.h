// Vector helpers, compiled once per target; include after hwy/highway.h.
#if defined(TARN_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_SIMD_INL_H_
#undef TARN_KERNELS_CPU_SIMD_INL_H_
#else
#define TARN_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VecF32 = hn::Vec<F32>;

/// Floats per vector of this target.
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(F32()));

/// Whether a masked memory access touches only its active lanes (elsewhere it would read past the
/// end of arrays) and costs no more than a plain one.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr bool kMaskedIsFree = true;
#else
constexpr bool kMaskedIsFree = false;
#endif

/// 32 vector registers hold blocks of 24 accumulators, 16 registers hold 12.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
constexpr bool kManyRegisters = false;
#else
constexpr bool kManyRegisters = true;
#endif

/// n rounded up to whole vectors.
constexpr int64_t round_up_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

/// Unrolls the loop that follows: arrays of vectors stay in registers only if every index into them
/// is known at compile time.
#if HWY_COMPILER_CLANG
#define TARN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TARN_UNROLL _Pragma("GCC unroll 32")
#endif

/// The first `size` lanes of a vector, 0 < size ≤ kLanes: made once, outside of loops.
struct Tail {
  explicit HWY_INLINE Tail(int64_t n)
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
      : size(n), mask(hn::FirstN(F32(), static_cast<size_t>(n))) {
  }
  int64_t size;
  hn::Mask<F32> mask;
#else
      : size(n) {
  }
  int64_t size;
#endif
};

/// The lanes of the tail from memory, zero in the others. Reads nothing past the tail.
HWY_INLINE VecF32 load_partial(const float* from, const Tail& tail) {
  const F32 d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  return hn::MaskedLoad(tail.mask, d, from);
#else
  if (tail.size == kLanes) return hn::LoadU(d, from);
  HWY_ALIGN float lanes[kLanes] = {};
  for (int64_t i = 0; i < tail.size; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
#endif
}

/// Stores the lanes of the tail; memory past it is untouched.
HWY_INLINE void store_partial(VecF32 value, float* to, const Tail& tail) {
  const F32 d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  hn::BlendedStore(value, tail.mask, d, to);
#else
  if (tail.size == kLanes) {
    hn::StoreU(value, d, to);
    return;
  }
  HWY_ALIGN float lanes[kLanes];
  hn::Store(value, d, lanes);
  for (int64_t i = 0; i < tail.size; ++i) to[i] = lanes[i];
#endif
}

HWY_INLINE VecF32 load_partial(const float* from, int64_t n) { return load_partial(from, Tail(n)); }
HWY_INLINE void store_partial(VecF32 value, float* to, int64_t n) {
  store_partial(value, to, Tail(n));
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_SIMD_INL_H_
