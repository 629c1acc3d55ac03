#pragma once

#include <cstdint>

namespace tarn::kernels {

/// out = (x − mean)/sqrt(var + eps)·weight + bias per row (biased variance, eps inside the root).
/// x and out [rows, dim] row-strided, may alias; weight, bias [dim]. Each row's bits depend on
/// that row alone.
void layer_norm(int64_t rows, int64_t dim, const float* x, int64_t x_stride, const float* weight,
                const float* bias, float eps, float* out, int64_t out_stride) noexcept;

/// out = x/sqrt(mean x² + eps)·weight per row.
void rms_norm(int64_t rows, int64_t dim, const float* x, int64_t x_stride, const float* weight,
              float eps, float* out, int64_t out_stride) noexcept;

namespace reference {
void layer_norm(int64_t dim, const double* x, const double* weight, const double* bias, double eps,
                double* out);
void rms_norm(int64_t dim, const double* x, const double* weight, double eps, double* out);
}  // namespace reference

}  // namespace tarn::kernels
