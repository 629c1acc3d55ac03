#pragma once

#include <cstdint>

#include "kernels/product.h"

namespace tarn::kernels {

inline constexpr int kProductRows = 12;         ///< most rows of a tile
inline constexpr int64_t kProductColumns = 32;  ///< columns of a tile and of a panel

/// The inner loops of products with operands in bf16, for one kind of CPU.
struct Bf16ProductKernels {
  const char* name;
  /// sums[r, c] = Σ over `units` pairs: a[r·row_stride + u·unit_stride] times b[u, c]; r < rows ≤ 12.
  void (*tile)(int64_t rows, int64_t units, const uint32_t* a, int64_t row_stride,
               int64_t unit_stride, const uint32_t* b, float* sums);
  /// to[u] = the pair x[2u], x[2u + 1] for u < (count + 1)/2; a missing value is zero.
  void (*round_row)(int64_t count, const float* x, uint32_t* to);
  /// to[u·width + i] = the pair x[2u, i], x[2u + 1, i] for i < count ≤ width, zeros beyond; x is
  /// [rows, count] with rows `stride` apart, a missing row is zero.
  void (*round_pairs)(int64_t rows, int64_t count, const float* x, int64_t stride, uint32_t* to,
                      int64_t width);
};

/// The same with units of one f32 each.
void f32_product_tile(int64_t rows, int64_t depth, const float* a, int64_t row_stride,
                      int64_t unit_stride, const float* b, float* sums);
/// Rows of `count` values, `stride` apart, to rows of `width`, zeros beyond.
void copy_rows(int64_t rows, int64_t count, const float* x, int64_t stride, float* to,
               int64_t width);
/// A tile's sums to rows [row, row + rows) and columns [column, column + columns) of the product:
/// bias, addend, relu, gate. `sums` [rows, 32] is scratch afterwards.
void finish_tile(const RowProduct& product, int64_t row, int64_t rows, int64_t column,
                 int64_t columns, float* sums);
/// out[r, c] += sums[r, c], rows of 32 to rows `stride` apart.
void add_tile(int64_t rows, int64_t columns, const float* sums, float* out, int64_t stride);
/// sums[c] += Σ rows of x, one chain per column.
void add_column_sums(int64_t rows, int64_t columns, const float* x, int64_t stride, float* sums);

/// Vector code that every CPU can run.
const Bf16ProductKernels& generic_bf16_product_kernels();
/// With the dot products of AVX512_BF16; null where the CPU or the build lacks them.
const Bf16ProductKernels* avx512_bf16_product_kernels();

}  // namespace tarn::kernels
