#include "kernels/hash.h"

#include <algorithm>

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/hash.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// Rows whose sums are independent chains of additions beside each other.
constexpr int64_t kHashRows = 8;

template <int64_t kRows>
HWY_INLINE void hash_rows(int64_t dim, int64_t columns, Rows<const float> x,
                          const float* directions, int32_t* bucket) {
  const F32 d;
  float best[kRows];
  std::fill_n(best, kRows, -1.0f);
  for (int64_t first = 0; first < columns; first += kLanes) {
    const Tail tail(std::min(kLanes, columns - first));
    VecF32 sums[kRows];
    TARN_UNROLL
    for (int64_t r = 0; r < kRows; ++r) sums[r] = hn::Zero(d);
    for (int64_t i = 0; i < dim; ++i) {
      const VecF32 row = load_partial(directions + i * columns + first, tail);
      TARN_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        // Not MulAdd, which rounds once on some targets and twice on others.
        sums[r] = hn::Add(sums[r], hn::Mul(hn::Set(d, x.at(r)[i]), row));
      }
    }
    for (int64_t r = 0; r < kRows; ++r) {
      // A NaN counts as nothing, so that the maximum is the same on all targets.
      const VecF32 length = hn::IfThenElseZero(hn::Eq(sums[r], sums[r]), hn::Abs(sums[r]));
      const float longest = hn::GetLane(hn::MaxOfLanes(d, length));
      if (!(longest > best[r])) continue;
      best[r] = longest;
      const auto found = hn::Eq(length, hn::Set(d, longest));
      const auto lane = static_cast<int64_t>(hn::FindKnownFirstTrue(d, found));
      float products[kLanes];
      hn::StoreU(sums[r], d, products);
      bucket[r] =
          static_cast<int32_t>(products[lane] >= 0.0f ? first + lane : columns + first + lane);
    }
  }
}

void largest_projections_impl(int64_t rows, int64_t dim, int64_t columns, Rows<const float> x,
                              const float* directions, int32_t* bucket) {
  int64_t row = 0;
  for (; row + kHashRows <= rows; row += kHashRows) {
    hash_rows<kHashRows>(dim, columns, {x.at(row), x.stride}, directions, bucket + row);
  }
  for (; row < rows; ++row) {
    hash_rows<1>(dim, columns, {x.at(row), x.stride}, directions, bucket + row);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {

HWY_EXPORT(largest_projections_impl);

void largest_projections(int64_t rows, int64_t dim, int64_t columns, Rows<const float> x,
                         const float* directions, int32_t* bucket) noexcept {
  HWY_DYNAMIC_DISPATCH(largest_projections_impl)(rows, dim, columns, x, directions, bucket);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
