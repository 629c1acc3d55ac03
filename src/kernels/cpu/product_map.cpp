#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/feature_map.h"
#include "kernels/reference/feature_map.h"

// Feature maps made of products of two channels. Plain loops: compilers vectorise them, and the state
// update, with its many features, takes most of the time.

namespace tarn::kernels {
namespace {

/// The rectified channel m of [x, -x]; NaN stays NaN.
float rectified(const float* x, int64_t dim, int64_t m) {
  const float value = m < dim ? x[m] : -x[m - dim];
  return value < 0.0f ? 0.0f : value;
}

void dpfp_forward(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                  float* phi) noexcept {
  const int64_t dim = map.input_dim;
  const int64_t width = 2 * dim;
  for (int64_t row = 0; row < rows; ++row, x += x_stride) {
    for (int64_t shift = 1; shift <= map.feature_dim / width; ++shift, phi += width) {
      for (int64_t m = 0; m < width; ++m) {
        phi[m] = rectified(x, dim, m) * rectified(x, dim, (m + shift) % width);
      }
    }
  }
}

void dpfp_backward(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                   const float* /*phi*/, const float* dphi, float* dx, int64_t dx_stride) noexcept {
  const int64_t dim = map.input_dim;
  const int64_t width = 2 * dim;
  for (int64_t row = 0; row < rows; ++row, x += x_stride, dx += dx_stride) {
    for (int64_t i = 0; i < dim; ++i) {
      // Only the rectified half that x_i is in has a slope, and it is a factor of two products.
      const int64_t m = x[i] > 0.0f ? i : dim + i;
      float sum = 0.0f;
      for (int64_t shift = 1; shift <= map.feature_dim / width; ++shift) {
        const float* gradient = dphi + (shift - 1) * width;
        const int64_t before = (m - shift % width + width) % width;
        sum += gradient[m] * rectified(x, dim, (m + shift) % width);
        sum += gradient[before] * rectified(x, dim, before);
      }
      dx[i] = x[i] > 0.0f ? sum : x[i] < 0.0f ? -sum : 0.0f * x[i];
    }
    dphi += map.feature_dim;
  }
}

void taylor_forward(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                    float* phi) noexcept {
  const int64_t dim = map.input_dim;
  const float first = std::pow(static_cast<float>(dim), -0.25f);
  const float second = std::sqrt(0.5f / static_cast<float>(dim));
  for (int64_t row = 0; row < rows; ++row, x += x_stride) {
    *phi++ = 1.0f;
    for (int64_t i = 0; i < dim; ++i) *phi++ = first * x[i];
    for (int64_t i = 0; i < dim; ++i, phi += dim) {
      const float scaled = second * x[i];
      for (int64_t j = 0; j < dim; ++j) phi[j] = scaled * x[j];
    }
  }
}

void taylor_backward(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                     const float* /*phi*/, const float* dphi, float* dx,
                     int64_t dx_stride) noexcept {
  const int64_t dim = map.input_dim;
  const float first = std::pow(static_cast<float>(dim), -0.25f);
  const float second = std::sqrt(0.5f / static_cast<float>(dim));
  for (int64_t row = 0; row < rows; ++row, x += x_stride, dx += dx_stride) {
    const float* linear = dphi + 1;
    const float* square = linear + dim;
    for (int64_t i = 0; i < dim; ++i) dx[i] = first * linear[i];
    for (int64_t i = 0; i < dim; ++i) {
      const float scaled = second * x[i];
      float sum = 0.0f;
      for (int64_t j = 0; j < dim; ++j) {
        sum += square[i * dim + j] * x[j];
        dx[j] += scaled * square[i * dim + j];
      }
      dx[i] += second * sum;
    }
    dphi += map.feature_dim;
  }
}

}  // namespace

FeatureMap dpfp_map(int64_t dim, int64_t order) {
  return {.input_dim = dim,
          .feature_dim = 2 * dim * order,
          .forward = dpfp_forward,
          .backward = dpfp_backward,
          .reference = reference::dpfp};
}

FeatureMap taylor_map(int64_t dim) {
  return {.input_dim = dim,
          .feature_dim = 1 + dim + dim * dim,
          .forward = taylor_forward,
          .backward = taylor_backward,
          .reference = reference::taylor};
}

}  // namespace tarn::kernels
