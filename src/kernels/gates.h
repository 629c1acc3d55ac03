#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace tarn::kernels {

/// Functions of one channel that gates and activations of mechanisms use.
enum class GateFunction : uint8_t {
  kIdentity,
  kSigmoid,
  kSilu,
  kTanh,
  kGelu,  ///< x·Φ(x) with the normal distribution Φ, within a few eps of max(1, |x|)
  kLogSigmoid,
  kSquaredRelu,
  kSoftplus
};

/// y = scale·f(x + bias) for `rows` rows of `width` channels; bias [width] or null. f32: within a
/// few eps of the double value's size, or of 1 where that is smaller. Cost: an exponential per
/// channel. A channel's bits depend on nothing but its own numbers.
void gate_function(GateFunction function, float scale, int64_t rows, int64_t width,
                   Rows<const float> x, const float* bias, Rows<float> y) noexcept;

/// dx = scale·f′(x + bias)·dy.
void gate_function_gradient(GateFunction function, float scale, int64_t rows, int64_t width,
                            Rows<const float> x, const float* bias, Rows<const float> dy,
                            Rows<float> dx) noexcept;

/// y = x·f(gate).
void multiply_by_gate(GateFunction function, int64_t rows, int64_t width, Rows<const float> x,
                      Rows<const float> gate, Rows<float> y) noexcept;

/// dx = f(gate)·dy, dgate = x·f′(gate)·dy.
void multiply_by_gate_gradient(GateFunction function, int64_t rows, int64_t width,
                               Rows<const float> x, Rows<const float> gate, Rows<const float> dy,
                               Rows<float> dx, Rows<float> dgate) noexcept;

/// y = x·s per row, s = 1/√(Σx² + eps), or 1/max(√Σx², eps) when `clamped`.
void l2_norm(int64_t rows, int64_t dim, Rows<const float> x, float eps, bool clamped,
             Rows<float> y) noexcept;
/// With y = s·x as l2_norm gave it: dx = s·(dy − y·(dy·y)); where the clamp holds dx = s·dy.
void l2_norm_gradient(int64_t rows, int64_t dim, Rows<const float> x, Rows<const float> y,
                      float eps, bool clamped, Rows<const float> dy, Rows<float> dx) noexcept;

/// Gradient of rms_norm (kernels/norm.h) with x̂ = s·x, s = 1/√(mean x² + eps), g = dy·weight:
///   dx = s·(g − x̂·mean(g·x̂)),  dweight += Σ rows dy·x̂, rows in order.
void rms_norm_gradient(int64_t rows, int64_t dim, Rows<const float> x, const float* weight,
                       float eps, Rows<const float> dy, Rows<float> dx, float* dweight) noexcept;

namespace reference {
double gate_function(GateFunction function, double x);
double gate_slope(GateFunction function, double x);
}  // namespace reference

}  // namespace tarn::kernels
