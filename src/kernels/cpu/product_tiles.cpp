#include <algorithm>
#include <utility>

#include "base/dtype.h"
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/product_tiles.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels::HWY_NAMESPACE {

using Tag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Tag>;
constexpr int64_t kWidth = static_cast<int64_t>(hn::MaxLanes(Tag()));

constexpr int64_t kRowsAhead = 16;  // of a prefetch

/// Rows whose accumulators fit the registers beside two vectors of B.
constexpr int kTileRows = kManyRegisters ? kProductRows : kProductRows / 2;

/// sums[r, c] = Σ_k a[r, k]·b[k, c], one chain of fused multiply-adds per element.
template <int kRows>
HWY_NOINLINE void f32_rows(int64_t depth, const float* a, int64_t row_stride, int64_t unit_stride,
                           const float* b, float* sums) {
  const Tag d;
  for (int64_t column = 0; column < kProductColumns; column += 2 * kWidth) {
    Vector sum[kRows][2];
    TARN_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
    const float* ak = a;
    const float* bk = b + column;
    for (int64_t k = 0; k < depth; ++k, ak += unit_stride, bk += kProductColumns) {
      const Vector left = hn::LoadU(d, bk);
      const Vector right = hn::LoadU(d, bk + kWidth);
      TARN_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Vector value = hn::Set(d, ak[r * row_stride]);
        sum[r][0] = hn::MulAdd(value, left, sum[r][0]);
        sum[r][1] = hn::MulAdd(value, right, sum[r][1]);
      }
    }
    TARN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(sum[r][0], d, sums + r * kProductColumns + column);
      hn::StoreU(sum[r][1], d, sums + r * kProductColumns + column + kWidth);
    }
  }
}

using F32Tile = void (*)(int64_t, const float*, int64_t, int64_t, const float*, float*);

template <int... kRows>
F32Tile f32_tile_of(int64_t rows, std::integer_sequence<int, kRows...>) {
  static constexpr F32Tile kTiles[] = {f32_rows<kRows + 1>...};
  return kTiles[rows - 1];
}

void f32_tile_impl(int64_t rows, int64_t depth, const float* a, int64_t row_stride,
                   int64_t unit_stride, const float* b, float* sums) {
  for (int64_t r = 0; r < rows; r += kTileRows) {
    const int64_t count = std::min<int64_t>(kTileRows, rows - r);
    f32_tile_of(count, std::make_integer_sequence<int, kTileRows>())(
        depth, a + r * row_stride, row_stride, unit_stride, b, sums + r * kProductColumns);
  }
}

/// Bits of bf16 in the high half of each lane: nearest even, NaN stays NaN.
HWY_INLINE auto rounded_high(VecF32 x) {
  const hn::RebindToUnsigned<F32> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto nearest = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(x));
  return hn::And(hn::IfThenElse(is_nan, quiet, nearest), hn::Set(du, 0xffff0000u));
}

/// Pairs as two multiply-adds each: for CPUs without the dot product.
void bf16_tile(int64_t rows, int64_t units, const uint32_t* a, int64_t row_stride,
               int64_t unit_stride, const uint32_t* b, float* sums) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> du;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t column = 0; column < kProductColumns; column += kWidth) {
      Vector sum = hn::Zero(d);
      for (int64_t u = 0; u < units; ++u) {
        const auto pair = hn::Set(du, a[r * row_stride + u * unit_stride]);
        const auto other = hn::LoadU(du, b + u * kProductColumns + column);
        const auto high = hn::Set(du, 0xffff0000u);
        sum = hn::MulAdd(hn::BitCast(d, hn::ShiftLeft<16>(pair)),
                         hn::BitCast(d, hn::ShiftLeft<16>(other)), sum);
        sum = hn::MulAdd(hn::BitCast(d, hn::And(pair, high)), hn::BitCast(d, hn::And(other, high)),
                         sum);
      }
      hn::StoreU(sum, d, sums + r * kProductColumns + column);
    }
  }
}

void round_pairs(int64_t rows, int64_t count, const float* x, int64_t stride, uint32_t* to,
                 int64_t width) {
  for (int64_t r = 0; r < rows; r += 2, x += 2 * stride, to += width) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const Tail tail(std::min(kLanes, count - i));
      auto pair = hn::ShiftRight<16>(rounded_high(load_partial(x + i, tail)));
      if (r + 1 < rows) pair = hn::Or(pair, rounded_high(load_partial(x + stride + i, tail)));
      store_partial(hn::BitCast(F32(), pair), reinterpret_cast<float*>(to + i), tail);
    }
    std::fill(to + count, to + width, 0u);
  }
}

/// Copies [rows, count] to rows of `width`, zeros beyond.
void copy_rows_impl(int64_t rows, int64_t count, const float* x, int64_t stride, float* to,
                    int64_t width) {
  const F32 d;
  for (int64_t r = 0; r < rows; ++r, x += stride, to += width) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      // Rows lie too far apart for the hardware to see them coming.
      hwy::Prefetch(x + kRowsAhead * stride + i);
      hn::StoreU(hn::LoadU(d, x + i), d, to + i);
    }
    if (i < count) store_partial(load_partial(x + i, count - i), to + i, count - i);
    std::fill(to + count, to + width, 0.0f);
  }
}

/// sums[r, c] = f(sums[r, c], other[r, c]).
template <class Function>
HWY_INLINE void combine_tile(int64_t rows, int64_t columns, const float* other, int64_t stride,
                             float* sums, const Function& f) {
  const F32 d;
  for (int64_t c = 0; c < columns; c += kLanes) {
    const Tail tail(std::min(kLanes, columns - c));
    for (int64_t r = 0; r < rows; ++r) {
      float* sum = sums + r * kProductColumns + c;
      hn::StoreU(f(hn::LoadU(d, sum), load_partial(other + r * stride + c, tail)), d, sum);
    }
  }
}

/// Sums of a tile to rows of the product: bias, addend, gate. Reads everything before it writes:
/// rows of two matrices that lie a multiple of 4 KiB apart would make every load wait for a store.
void finish_tile_impl(const RowProduct& product, int64_t row, int64_t rows, int64_t column,
                      int64_t columns, float* sums) {
  const F32 d;
  const VecF32 zero = hn::Zero(d);
  if (product.bias != nullptr) {
    combine_tile(rows, columns, product.bias + column, 0, sums,
                 [](VecF32 sum, VecF32 bias) { return hn::Add(sum, bias); });
  }
  if (product.addend != nullptr) {
    const float* addend = product.addend + row * product.addend_stride + column;
    combine_tile(rows, columns, addend, product.addend_stride, sums,
                 [](VecF32 sum, VecF32 other) { return hn::Add(sum, other); });
  }
  if (product.gate != nullptr) {
    const float* gate = product.gate + row * product.gate_stride + column;
    combine_tile(rows, columns, gate, product.gate_stride, sums, [&](VecF32 sum, VecF32 pass) {
      return hn::IfThenZeroElse(hn::Le(pass, zero), sum);
    });
  }
  float* out = product.out + row * product.out_stride + column;
  for (int64_t c = 0; c < columns; c += kLanes) {
    const Tail tail(std::min(kLanes, columns - c));
    for (int64_t r = 0; r < rows; ++r) {
      VecF32 value = hn::LoadU(d, sums + r * kProductColumns + c);
      // A comparison, because Max drops NaN on some targets.
      if (product.relu) value = hn::IfThenZeroElse(hn::Le(value, zero), value);
      store_partial(value, out + r * product.out_stride + c, tail);
    }
  }
}

/// out[r, c] += sums[r, c].
void add_tile_impl(int64_t rows, int64_t columns, const float* sums, float* out, int64_t stride) {
  const F32 d;
  for (int64_t c = 0; c < columns; c += kLanes) {
    const Tail tail(std::min(kLanes, columns - c));
    for (int64_t r = 0; r < rows; ++r) {
      float* to = out + r * stride + c;
      store_partial(hn::Add(load_partial(to, tail), hn::LoadU(d, sums + r * kProductColumns + c)),
                    to, tail);
    }
  }
}

/// sums[c] += Σ rows of x, one chain per column.
void add_column_sums_impl(int64_t rows, int64_t columns, const float* x, int64_t stride,
                          float* sums) {
  const F32 d;
  int64_t c = 0;
  for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
    VecF32 sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * stride + c;
      TARN_UNROLL
      for (int i = 0; i < 4; ++i) sum[i] = hn::Add(sum[i], hn::LoadU(d, row + i * kLanes));
    }
    for (int i = 0; i < 4; ++i) {
      float* to = sums + c + i * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), sum[i]), d, to);
    }
  }
  for (; c < columns; c += kLanes) {
    const Tail tail(std::min(kLanes, columns - c));
    VecF32 sum = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r) sum = hn::Add(sum, load_partial(x + r * stride + c, tail));
    store_partial(hn::Add(load_partial(sums + c, tail), sum), sums + c, tail);
  }
}

}  // namespace tarn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

HWY_EXPORT(f32_tile_impl);
HWY_EXPORT(bf16_tile);
HWY_EXPORT(round_pairs);
HWY_EXPORT(copy_rows_impl);
HWY_EXPORT(finish_tile_impl);
HWY_EXPORT(add_tile_impl);
HWY_EXPORT(add_column_sums_impl);

namespace {

void generic_tile(int64_t rows, int64_t units, const uint32_t* a, int64_t row_stride,
                  int64_t unit_stride, const uint32_t* b, float* sums) {
  HWY_DYNAMIC_DISPATCH(bf16_tile)(rows, units, a, row_stride, unit_stride, b, sums);
}

void generic_round_row(int64_t count, const float* x, uint32_t* to) {
  for (int64_t u = 0; u < (count + 1) / 2; ++u) {
    const uint32_t high = 2 * u + 1 < count ? f32_to_bf16(x[2 * u + 1]) : 0u;
    to[u] = high << 16 | f32_to_bf16(x[2 * u]);
  }
}

void generic_round_pairs(int64_t rows, int64_t count, const float* x, int64_t stride, uint32_t* to,
                         int64_t width) {
  HWY_DYNAMIC_DISPATCH(round_pairs)(rows, count, x, stride, to, width);
}

}  // namespace

const Bf16ProductKernels& generic_bf16_product_kernels() {
  static constexpr Bf16ProductKernels kKernels{"generic", generic_tile, generic_round_row,
                                               generic_round_pairs};
  return kKernels;
}

void f32_product_tile(int64_t rows, int64_t depth, const float* a, int64_t row_stride,
                      int64_t unit_stride, const float* b, float* sums) {
  HWY_DYNAMIC_DISPATCH(f32_tile_impl)(rows, depth, a, row_stride, unit_stride, b, sums);
}

void copy_rows(int64_t rows, int64_t count, const float* x, int64_t stride, float* to,
               int64_t width) {
  HWY_DYNAMIC_DISPATCH(copy_rows_impl)(rows, count, x, stride, to, width);
}

void finish_tile(const RowProduct& product, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float* sums) {
  HWY_DYNAMIC_DISPATCH(finish_tile_impl)(product, row, rows, column, columns, sums);
}

void add_tile(int64_t rows, int64_t columns, const float* sums, float* out, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(add_tile_impl)(rows, columns, sums, out, stride);
}

void add_column_sums(int64_t rows, int64_t columns, const float* x, int64_t stride, float* sums) {
  HWY_DYNAMIC_DISPATCH(add_column_sums_impl)(rows, columns, x, stride, sums);
}

}  // namespace tarn::kernels
#endif
