#include "kernels/product.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/product_kernels.h"

namespace tarn::kernels {
namespace {

constexpr int64_t kColumns = kProductColumns;
constexpr int64_t kDepthUnits = 256;                // of a block of add_weight_gradient
constexpr int64_t kLeftColumns = 8 * kProductRows;  // of dy packed at once: whole cache lines
constexpr int64_t kBlockBytes = 1 << 18;            // of packed operands that should stay in L2

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
    f32_product_tile(rows, units, as_floats(a), row_stride, unit_stride, as_floats(b), sums);
  }
}

/// `size` columns of `depth` rows of a plain matrix to units [units][width].
void pack_plain(DType format, const float* data, int64_t stride, int64_t depth, int64_t size,
                int64_t width, uint32_t* to) {
  if (format == DType::kBF16) {
    bf16_kernels().round_pairs(depth, size, data, stride, to, width);
  } else {
    copy_rows(depth, size, data, stride, reinterpret_cast<float*>(to), width);
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
        add_column_sums(depth, size, dy + m, g.dy_stride, g.dbias + m);
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
          add_tile(rows, std::min(kColumns, columns - c), sums, target, g.in_dim);
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
        finish_tile(product, first + r, count, column, std::min(kColumns, b.columns - column),
                    sums);
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
