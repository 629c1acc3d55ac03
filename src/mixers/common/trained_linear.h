#pragma once

#include "base/arena.h"
#include "base/dtype.h"
#include "base/threads.h"
#include "kernels/product.h"

namespace tarn::mixers {

/// A linear map in training: y = x·Wᵀ + b by the kernels of kernels/product.h. Gradients are added
/// in place. Weights are packed anew for every pass, because every update changes them.
struct TrainedLinear {
  int64_t out_dim = 0;
  int64_t in_dim = 0;
  const float* weight = nullptr;  ///< [out_dim, in_dim]
  const float* bias = nullptr;    ///< [out_dim], or null
  float* dweight = nullptr;
  float* dbias = nullptr;         ///< or null
  DType precision = DType::kF32;  ///< of the product's operands: kF32 or kBF16

  /// Of one product.
  double flops(int64_t rows) const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(out_dim * in_dim);
  }
  /// The right operand of x·Wᵀ.
  kernels::PackedOperand pack(ThreadPool* pool, Arena& arena) const {
    return kernels::pack_operand(precision, kernels::Layout::kTransposed, weight, in_dim, in_dim,
                                 out_dim, pool, arena);
  }
  /// The right operand of dy·W.
  kernels::PackedOperand pack_for_gradient(ThreadPool* pool, Arena& arena) const {
    return kernels::pack_operand(precision, kernels::Layout::kPlain, weight, in_dim, out_dim,
                                 in_dim, pool, arena);
  }
  /// Adds dyᵀ·x and the sums of dy's columns to the gradients.
  void add_gradient(int64_t rows, const float* dy, int64_t dy_stride, const float* x,
                    int64_t x_stride, ThreadPool* pool) const {
    kernels::WeightGradient gradient;
    gradient.format = precision;
    gradient.rows = rows;
    gradient.out_dim = out_dim;
    gradient.in_dim = in_dim;
    gradient.dy = dy;
    gradient.dy_stride = dy_stride;
    gradient.x = x;
    gradient.x_stride = x_stride;
    gradient.dweight = dweight;
    gradient.dbias = dbias;
    kernels::add_weight_gradient(gradient, pool);
  }
};

}  // namespace tarn::mixers
