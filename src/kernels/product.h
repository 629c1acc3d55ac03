#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/threads.h"

namespace tarn::kernels {

/// The right operand B [depth, columns] of a product, packed for many rows.
/// Panels [columns/32][units][32] of 32-bit units, padded with zeros: a unit is one f32 value, or
/// with bf16 two values that follow one another along the depth.
struct PackedOperand {
  const uint32_t* units = nullptr;
  int64_t depth = 0;
  int64_t columns = 0;
  DType format = DType::kF32;  ///< kF32, or kBF16: operands rounded to bf16, sums f32
};

/// Which way a matrix in memory lies.
enum class Layout : uint8_t {
  kPlain,       ///< B[k, n] = data[k·stride + n]
  kTransposed,  ///< B[k, n] = data[n·stride + k]: a Linear's weight [out, in] for x·Wᵀ
};

/// Packs B into memory of `arena`. Unlike PackedMatrix, which keeps a weight for good, this is for
/// weights that change with every update.
PackedOperand pack_operand(DType format, Layout layout, const float* data, int64_t stride,
                           int64_t depth, int64_t columns, ThreadPool* pool, Arena& arena);

/// out = g(A·B + bias + addend) for `rows` rows; g is relu, or a gate that lets an element pass where
/// its own is positive, or nothing. Optional pointers may be null; `addend` may be `out`.
struct RowProduct {
  int64_t rows = 0;
  const float* a = nullptr;  ///< [rows, depth]
  int64_t a_stride = 0;
  const float* bias = nullptr;    ///< [columns]
  const float* addend = nullptr;  ///< [rows, columns]
  int64_t addend_stride = 0;
  bool relu = false;
  const float* gate = nullptr;  ///< [rows, columns]
  int64_t gate_stride = 0;
  float* out = nullptr;  ///< [rows, columns]; not aliasing a
  int64_t out_stride = 0;
};

/// Rows [begin, end) of a product.
RowProduct rows_of(const RowProduct& product, int64_t begin, int64_t end);

/// Serial. Each element is one chain of multiply-adds over k in order, so a row's bits depend on that
/// row alone. Cost: 2·rows·depth·columns flops.
void multiply_rows(const PackedOperand& b, const RowProduct& product) noexcept;

/// The same with the rows split over the threads of a pool.
void multiply_rows(const PackedOperand& b, const RowProduct& product, ThreadPool* pool) noexcept;

/// The gradient of a linear map's weight and bias: dweight [out_dim, in_dim] += dyᵀ·x and
/// dbias [out_dim] (nullable) += Σ rows of dy. Sums run over blocks of 256 rows in order, whatever
/// the pool. Cost: 2·rows·out_dim·in_dim flops.
struct WeightGradient {
  DType format = DType::kF32;
  int64_t rows = 0;
  int64_t out_dim = 0;
  int64_t in_dim = 0;
  const float* dy = nullptr;  ///< [rows, out_dim]
  int64_t dy_stride = 0;
  const float* x = nullptr;  ///< [rows, in_dim]
  int64_t x_stride = 0;
  float* dweight = nullptr;
  float* dbias = nullptr;
};
void add_weight_gradient(const WeightGradient& gradient, ThreadPool* pool) noexcept;

}  // namespace tarn::kernels
