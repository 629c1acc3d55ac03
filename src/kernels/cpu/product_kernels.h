#pragma once

#include <cstdint>

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

/// Vector code that every CPU can run.
const Bf16ProductKernels& generic_bf16_product_kernels();
/// With the dot products of AVX512_BF16; null where the CPU or the build lacks them.
const Bf16ProductKernels* avx512_bf16_product_kernels();

}  // namespace tarn::kernels
