#pragma once

#include <cstdint>

#include "base/threads.h"

namespace tarn::kernels {

/// Gradient of layer_norm (kernels/norm.h), or of rms_norm when `rms`. x̂ = (x − mean)·s with
/// s = 1/sqrt(var + eps), recomputed from x; g = dy·weight; mean(·) over a row:
///   dx = s·(g − mean(g) − x̂·mean(g·x̂)),  dweight += Σ rows dy·x̂,  dbias += Σ rows dy
/// (rms: mean = 0, no mean(g), no bias). All [rows, dim] dense; dx may be dy. Sums over rows are
/// taken in fixed pieces, in order: the same bits for any pool.
void norm_gradient(bool rms, int64_t rows, int64_t dim, const float* x, const float* weight,
                   float eps, const float* dy, float* dx, float* dweight, float* dbias,
                   ThreadPool* pool) noexcept;

}  // namespace tarn::kernels
