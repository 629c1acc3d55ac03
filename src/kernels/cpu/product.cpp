#include "kernels/product.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/product_kernels.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/product.cpp"
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

void f32_tile(int64_t rows, int64_t depth, const float* a, int64_t row_stride, int64_t unit_stride,
              const float* b, float* sums) {
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
void copy_rows(int64_t rows, int64_t count, const float* x, int64_t stride, float* to,
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
void finish_tile(const RowProduct& product, int64_t row, int64_t rows, int64_t column,
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
void add_tile(int64_t rows, int64_t columns, const float* sums, float* out, int64_t stride) {
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
void add_column_sums(int64_t rows, int64_t columns, const float* x, int64_t stride, float* sums) {
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

HWY_EXPORT(f32_tile);
HWY_EXPORT(bf16_tile);
HWY_EXPORT(round_pairs);
HWY_EXPORT(copy_rows);
HWY_EXPORT(finish_tile);
HWY_EXPORT(add_tile);
HWY_EXPORT(add_column_sums);

namespace {

constexpr int64_t kColumns = kProductColumns;
constexpr int64_t kDepthUnits = 256;                // of a block of add_weight_gradient
constexpr int64_t kLeftColumns = 8 * kProductRows;  // of dy packed at once: whole cache lines
constexpr int64_t kBlockBytes = 1 << 18;            // of packed operands that should stay in L2

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

const Bf16ProductKernels& bf16_kernels() {
  static const Bf16ProductKernels* const fast = avx512_bf16_product_kernels();
  return fast != nullptr ? *fast : generic_bf16_product_kernels();
}

int64_t units_of(DType format, int64_t depth) {
  return format == DType::kBF16 ? (depth + 1) / 2 : depth;
}

const float* as_floats(const uint32_t* units) { return reinterpret_cast<const float*>(units); }

void tile(DType format, int64_t rows, int64_t units, const uint32_t* a, int64_t row_stride,
          int64_t unit_stride, const uint32_t* b, float* sums) {
  if (format == DType::kBF16) {
    bf16_kernels().tile(rows, units, a, row_stride, unit_stride, b, sums);
  } else {
    HWY_DYNAMIC_DISPATCH(f32_tile)
    (rows, units, as_floats(a), row_stride, unit_stride, as_floats(b), sums);
  }
}

/// `size` columns of `depth` rows of a plain matrix to units [units][width].
void pack_plain(DType format, const float* data, int64_t stride, int64_t depth, int64_t size,
                int64_t width, uint32_t* to) {
  if (format == DType::kBF16) {
    bf16_kernels().round_pairs(depth, size, data, stride, to, width);
  } else {
    HWY_DYNAMIC_DISPATCH(copy_rows)
    (depth, size, data, stride, reinterpret_cast<float*>(to), width);
  }
}

/// The same from the transposed matrix: `size` rows of `depth` values.
void pack_transposed(DType format, const float* data, int64_t stride, int64_t depth, int64_t size,
                     uint32_t* to) {
  const int64_t units = units_of(format, depth);
  constexpr int64_t kPiece = 256;  // units at a time: 32 rows of them stay in L1
  alignas(64) uint32_t rows[kColumns * kPiece];
  std::fill_n(rows, kColumns * kPiece, 0u);
  const int64_t per_unit = format == DType::kBF16 ? 2 : 1;
  for (int64_t first = 0; first < units; first += kPiece) {
    const int64_t count = std::min(kPiece, units - first);
    for (int64_t c = 0; c < size; ++c) {
      const float* from = data + c * stride + first * per_unit;
      uint32_t* row = rows + c * kPiece;
      if (format == DType::kBF16) {
        bf16_kernels().round_row(std::min(2 * count, depth - 2 * first), from, row);
      } else {
        std::copy_n(from, count, reinterpret_cast<float*>(row));
      }
    }
    for (int64_t u = 0; u < count; ++u) {
      uint32_t* unit = to + (first + u) * kColumns;
      for (int64_t c = 0; c < kColumns; ++c) unit[c] = rows[c * kPiece + u];
    }
  }
}

/// Packed rows of the left operand and its strides, in units.
struct Left {
  const uint32_t* units;
  int64_t row_stride;
};

Left left_rows(const PackedOperand& b, const RowProduct& product, int64_t first, int64_t rows,
               Arena& arena) {
  const float* a = product.a + first * product.a_stride;
  if (b.format != DType::kBF16) return {reinterpret_cast<const uint32_t*>(a), product.a_stride};
  const int64_t units = units_of(b.format, b.depth);
  // One line more than needed: rows a power of two apart would share few sets of the cache.
  const int64_t row_stride = (units + 15) / 16 * 16 + 16;
  uint32_t* packed = arena.alloc<uint32_t>(rows * row_stride);
  for (int64_t r = 0; r < rows; ++r) {
    bf16_kernels().round_row(b.depth, a + r * product.a_stride, packed + r * row_stride);
  }
  return {packed, row_stride};
}

void prefetch(const float* first, int64_t stride, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    __builtin_prefetch(first + r * stride, 1);
    __builtin_prefetch(first + r * stride + 16, 1);
  }
}

/// What finish_tile will touch comes from memory while the tile is computed.
void prefetch_tile(const RowProduct& product, int64_t row, int64_t rows, int64_t column) {
  prefetch(product.out + row * product.out_stride + column, product.out_stride, rows);
  if (product.addend != nullptr) {
    prefetch(product.addend + row * product.addend_stride + column, product.addend_stride, rows);
  }
  if (product.gate != nullptr) {
    prefetch(product.gate + row * product.gate_stride + column, product.gate_stride, rows);
  }
}

/// Piece `piece` of `pieces` of a block of rows, to the second-level cache.
void prefetch_piece(const float* x, int64_t stride, int64_t rows, int64_t columns, int64_t piece,
                    int64_t pieces) {
  const int64_t end = rows * (piece + 1) / pieces;
  for (int64_t r = rows * piece / pieces; r < end; ++r) {
    for (int64_t c = 0; c < columns; c += 16) __builtin_prefetch(x + r * stride + c, 0, 2);
  }
}

/// Rows [m_begin, m_end) of the gradient from rows [first, first + depth) of dy and x.
void add_gradient_block(const WeightGradient& g, int64_t first, int64_t depth, int64_t m_begin,
                        int64_t m_end, Arena& arena) {
  const int64_t units = units_of(g.format, depth);
  const int64_t chunk = 2 * kBlockBytes / (units * 4) / kColumns * kColumns;
  alignas(64) float sums[kProductRows * kColumns];
  const float* dy = g.dy + first * g.dy_stride;
  for (int64_t n = 0; n < g.in_dim; n += chunk) {
    ArenaScope scope(arena);
    const int64_t columns = std::min(chunk, g.in_dim - n);
    const PackedOperand b = pack_operand(g.format, Layout::kPlain, g.x + first * g.x_stride + n,
                                         g.x_stride, depth, columns, nullptr, arena);
    uint32_t* a = arena.alloc<uint32_t>(units * kLeftColumns);
    for (int64_t m = m_begin; m < m_end; m += kLeftColumns) {
      const int64_t size = std::min(kLeftColumns, m_end - m);
      const int64_t tiles = (size + kProductRows - 1) / kProductRows;
      pack_plain(g.format, dy + m, g.dy_stride, depth, size, kLeftColumns, a);
      if (n == 0 && g.dbias != nullptr) {  // while the block is in cache
        HWY_DYNAMIC_DISPATCH(add_column_sums)(depth, size, dy + m, g.dy_stride, g.dbias + m);
      }
      const int64_t next = m + kLeftColumns;
      const int64_t next_size = std::max<int64_t>(0, std::min(kLeftColumns, m_end - next));
      for (int64_t c = 0; c < columns; c += kColumns) {
        for (int64_t t = 0; t < tiles; ++t) {
          prefetch_piece(dy + next, g.dy_stride, depth, next_size, c / kColumns * tiles + t,
                         (columns + kColumns - 1) / kColumns * tiles);
          // Even heights: a tile of few rows waits for its own sums.
          const int64_t r = size * t / tiles;
          const int64_t rows = size * (t + 1) / tiles - r;
          float* target = g.dweight + (m + r) * g.in_dim + n + c;
          prefetch(target, g.in_dim, rows);
          tile(g.format, rows, units, a + r, 1, kLeftColumns, b.units + c * units, sums);
          HWY_DYNAMIC_DISPATCH(add_tile)
          (rows, std::min(kColumns, columns - c), sums, target, g.in_dim);
        }
      }
    }
  }
}

}  // namespace

RowProduct rows_of(const RowProduct& product, int64_t begin, int64_t end) {
  RowProduct part = product;
  part.rows = end - begin;
  part.a += begin * part.a_stride;
  if (part.addend != nullptr) part.addend += begin * part.addend_stride;
  if (part.gate != nullptr) part.gate += begin * part.gate_stride;
  part.out += begin * part.out_stride;
  return part;
}

const Bf16ProductKernels& generic_bf16_product_kernels() {
  static constexpr Bf16ProductKernels kKernels{"generic", generic_tile, generic_round_row,
                                               generic_round_pairs};
  return kKernels;
}

PackedOperand pack_operand(DType format, Layout layout, const float* data, int64_t stride,
                           int64_t depth, int64_t columns, ThreadPool* pool, Arena& arena) {
  TARN_DCHECK(format == DType::kF32 || format == DType::kBF16);
  const int64_t units = units_of(format, depth);
  const int64_t panels = (columns + kColumns - 1) / kColumns;
  uint32_t* packed = arena.alloc<uint32_t>(panels * units * kColumns);
  parallel_for(pool, panels, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * kColumns;
      const int64_t size = std::min(kColumns, columns - first);
      uint32_t* to = packed + first * units;
      if (layout == Layout::kPlain) {
        pack_plain(format, data + first, stride, depth, size, kColumns, to);
      } else {
        pack_transposed(format, data + first * stride, stride, depth, size, to);
      }
    }
  });
  return {packed, depth, columns, format};
}

void multiply_rows(const PackedOperand& b, const RowProduct& product) noexcept {
  thread_local Arena arena;
  const int64_t units = units_of(b.format, b.depth);
  const int64_t tile_bytes = std::max<int64_t>(1, units) * 4 * kProductRows;
  const int64_t pass = std::max<int64_t>(1, kBlockBytes / tile_bytes) * kProductRows;
  alignas(64) float sums[kProductRows * kColumns];
  for (int64_t first = 0; first < product.rows; first += pass) {
    ArenaScope scope(arena);
    const int64_t rows = std::min(pass, product.rows - first);
    const Left left = left_rows(b, product, first, rows, arena);
    for (int64_t r = 0; r < rows; r += kProductRows) {
      for (int64_t column = 0; column < b.columns; column += kColumns) {
        const int64_t count = std::min<int64_t>(kProductRows, rows - r);
        prefetch_tile(product, first + r, count, column);
        tile(b.format, count, units, left.units + r * left.row_stride, left.row_stride, 1,
             b.units + column * units, sums);
        HWY_DYNAMIC_DISPATCH(finish_tile)
        (product, first + r, count, column, std::min(kColumns, b.columns - column), sums);
      }
    }
  }
}

void multiply_rows(const PackedOperand& b, const RowProduct& product, ThreadPool* pool) noexcept {
  parallel_for(pool, product.rows, [&](int64_t begin, int64_t end, int) {
    multiply_rows(b, rows_of(product, begin, end));
  });
}

void add_weight_gradient(const WeightGradient& gradient, ThreadPool* pool) noexcept {
  const int64_t tiles = (gradient.out_dim + kProductRows - 1) / kProductRows;
  const int64_t block = gradient.format == DType::kBF16 ? 2 * kDepthUnits : kDepthUnits;
  parallel_for(pool, tiles, [&](int64_t begin, int64_t end, int) {
    thread_local Arena arena;
    for (int64_t first = 0; first < gradient.rows; first += block) {
      add_gradient_block(gradient, first, std::min(block, gradient.rows - first),
                         begin * kProductRows, std::min(end * kProductRows, gradient.out_dim),
                         arena);
    }
  });
}

}  // namespace tarn::kernels
#endif
