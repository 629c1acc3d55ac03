#include "kernels/feature_map.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_bf16.h"
#include "kernels/reference/feature_map.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/feature_map.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

// An elementwise map: phi(x), and dx(x, phi, dphi).

struct Identity {
  static HWY_INLINE VecF32 phi(VecF32 x) { return x; }
  static HWY_INLINE VecF32 dx(VecF32, VecF32, VecF32 dphi) { return dphi; }
};

/// max(x, 0); NaN stays NaN, which Max leaves to the target.
HWY_INLINE VecF32 positive_part(VecF32 x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(F32())), x);
}

struct EluPlusOne {
  // The exponential sees min(x, 0) only, so it cannot overflow.
  static HWY_INLINE VecF32 phi(VecF32 x) {
    const F32 d;
    const VecF32 below = exp_nonpositive(hn::Min(hn::Zero(d), x));
    // What Min makes of a NaN differs between targets; here a NaN takes x + 1.
    return hn::IfThenElse(hn::Le(x, hn::Zero(d)), below, hn::Add(x, hn::Set(d, 1.0f)));
  }
  static HWY_INLINE VecF32 dx(VecF32 x, VecF32 phi, VecF32 dphi) {
    const F32 d;
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), dphi, hn::Mul(phi, dphi));
  }
};

struct Relu {
  static HWY_INLINE VecF32 phi(VecF32 x) { return positive_part(x); }
  static HWY_INLINE VecF32 dx(VecF32 x, VecF32, VecF32 dphi) {
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(F32())), dphi);
  }
};

struct SquaredRelu {
  static HWY_INLINE VecF32 phi(VecF32 x) {
    const VecF32 positive = positive_part(x);
    return hn::Mul(positive, positive);
  }
  static HWY_INLINE VecF32 dx(VecF32 x, VecF32, VecF32 dphi) {
    const VecF32 positive = positive_part(x);
    return hn::Mul(hn::Add(positive, positive), dphi);
  }
};

template <class Map>
HWY_INLINE void elementwise_forward(int64_t rows, int64_t dim, const float* x, int64_t x_stride,
                                    float* phi) {
  const F32 d;
  for (int64_t row = 0; row < rows; ++row, x += x_stride, phi += dim) {
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) hn::StoreU(Map::phi(hn::LoadU(d, x + i)), d, phi + i);
    if (i < dim) store_partial(Map::phi(load_partial(x + i, dim - i)), phi + i, dim - i);
  }
}

template <class Map>
HWY_INLINE void elementwise_backward(int64_t rows, int64_t dim, const float* x, int64_t x_stride,
                                     const float* phi, const float* dphi, float* dx,
                                     int64_t dx_stride) {
  const F32 d;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
      hn::StoreU(Map::dx(hn::LoadU(d, x + i), hn::LoadU(d, phi + i), hn::LoadU(d, dphi + i)), d,
                 dx + i);
    }
    if (i < dim) {
      const int64_t rest = dim - i;
      store_partial(Map::dx(load_partial(x + i, rest), load_partial(phi + i, rest),
                            load_partial(dphi + i, rest)),
                    dx + i, rest);
    }
    x += x_stride;
    dx += dx_stride;
    phi += dim;
    dphi += dim;
  }
}

void identity_forward(int64_t rows, int64_t dim, const float* x, int64_t x_stride, float* phi) {
  elementwise_forward<Identity>(rows, dim, x, x_stride, phi);
}
void identity_backward(int64_t rows, int64_t dim, const float* x, int64_t x_stride,
                       const float* phi, const float* dphi, float* dx, int64_t dx_stride) {
  elementwise_backward<Identity>(rows, dim, x, x_stride, phi, dphi, dx, dx_stride);
}
void elu_plus_one_forward(int64_t rows, int64_t dim, const float* x, int64_t x_stride, float* phi) {
  elementwise_forward<EluPlusOne>(rows, dim, x, x_stride, phi);
}
void elu_plus_one_backward(int64_t rows, int64_t dim, const float* x, int64_t x_stride,
                           const float* phi, const float* dphi, float* dx, int64_t dx_stride) {
  elementwise_backward<EluPlusOne>(rows, dim, x, x_stride, phi, dphi, dx, dx_stride);
}
void relu_forward(int64_t rows, int64_t dim, const float* x, int64_t x_stride, float* phi) {
  elementwise_forward<Relu>(rows, dim, x, x_stride, phi);
}
void relu_backward(int64_t rows, int64_t dim, const float* x, int64_t x_stride, const float* phi,
                   const float* dphi, float* dx, int64_t dx_stride) {
  elementwise_backward<Relu>(rows, dim, x, x_stride, phi, dphi, dx, dx_stride);
}
void squared_relu_forward(int64_t rows, int64_t dim, const float* x, int64_t x_stride, float* phi) {
  elementwise_forward<SquaredRelu>(rows, dim, x, x_stride, phi);
}
void squared_relu_backward(int64_t rows, int64_t dim, const float* x, int64_t x_stride,
                           const float* phi, const float* dphi, float* dx, int64_t dx_stride) {
  elementwise_backward<SquaredRelu>(rows, dim, x, x_stride, phi, dphi, dx, dx_stride);
}

void favor_forward(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                   float* phi) {
  const F32 d;
  const int64_t dim = map.input_dim;
  const int64_t columns = map.feature_dim / 2;
  const float scale = std::pow(static_cast<float>(dim), -0.25f);
  const float constant = 0.5f * std::log(static_cast<float>(map.feature_dim));
  // x·ω lands in the first half of phi and is replaced by the two exponentials below.
  small_gemm(rows, columns, dim, {x, x_stride, 1}, map.parameters, columns, phi, map.feature_dim,
             false);
  for (int64_t row = 0; row < rows; ++row, x += x_stride, phi += map.feature_dim) {
    VecF32 squares = hn::Zero(d);
    for (int64_t i = 0; i < dim; i += kLanes) {
      const VecF32 value = load_partial(x + i, std::min(kLanes, dim - i));
      squares = hn::MulAdd(value, value, squares);
    }
    const float norm = hn::GetLane(hn::SumOfLanes(d, squares));
    const VecF32 h = hn::Set(d, 0.5f * scale * scale * norm + constant);
    for (int64_t j = 0; j < columns; j += kLanes) {
      const int64_t width = std::min(kLanes, columns - j);
      const VecF32 u = hn::Mul(hn::Set(d, scale), load_partial(phi + j, width));
      store_partial(hn::Exp(d, hn::Sub(u, h)), phi + j, width);
      store_partial(hn::Exp(d, hn::Neg(hn::Add(u, h))), phi + columns + j, width);
    }
  }
}

constexpr int64_t kFavorRows = 16;
constexpr int64_t kFavorColumns = 32;
constexpr int64_t kFavorDim = 64;

/// dx += du·ωᵀ for one tile of du [rows, width] that starts at column `first`.
HWY_INLINE void favor_add_projection(const FeatureMap& map, int64_t rows, int64_t first,
                                     int64_t width, const float* du, float* dx, int64_t dx_stride) {
  HWY_ALIGN float transposed[kFavorColumns * kFavorDim];
  const int64_t columns = map.feature_dim / 2;
  for (int64_t i0 = 0; i0 < map.input_dim; i0 += kFavorDim) {
    const int64_t height = std::min(kFavorDim, map.input_dim - i0);
    for (int64_t i = 0; i < height; ++i) {
      const float* from = map.parameters + (i0 + i) * columns + first;
      for (int64_t j = 0; j < width; ++j) transposed[j * kFavorDim + i] = from[j];
    }
    small_gemm(rows, height, width, {du, kFavorColumns, 1}, transposed, kFavorDim, dx + i0,
               dx_stride, true);
  }
}

/// With s = dim^(-1/4): dx = s·(ω du + s·x·dh), du = φ₁dφ₁ − φ₂dφ₂, dh = −Σ(φ₁dφ₁ + φ₂dφ₂).
void favor_backward(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                    const float* phi, const float* dphi, float* dx, int64_t dx_stride) {
  const F32 d;
  const int64_t dim = map.input_dim;
  const int64_t columns = map.feature_dim / 2;
  const VecF32 scale = hn::Set(d, std::pow(static_cast<float>(dim), -0.25f));
  HWY_ALIGN float du[kFavorRows * kFavorColumns];
  for (int64_t first_row = 0; first_row < rows; first_row += kFavorRows) {
    const int64_t block = std::min(kFavorRows, rows - first_row);
    VecF32 dh[kFavorRows];
    for (int64_t r = 0; r < block; ++r) {
      dh[r] = hn::Zero(d);
      float* out = dx + (first_row + r) * dx_stride;
      for (int64_t i = 0; i < dim; ++i) out[i] = 0.0f;
    }
    for (int64_t first = 0; first < columns; first += kFavorColumns) {
      const int64_t width = std::min(kFavorColumns, columns - first);
      for (int64_t r = 0; r < block; ++r) {
        const int64_t at = (first_row + r) * map.feature_dim + first;
        for (int64_t j = 0; j < width; j += kLanes) {
          const int64_t n = std::min(kLanes, width - j);
          const VecF32 plus =
              hn::Mul(load_partial(phi + at + j, n), load_partial(dphi + at + j, n));
          const VecF32 minus = hn::Mul(load_partial(phi + at + columns + j, n),
                                       load_partial(dphi + at + columns + j, n));
          store_partial(hn::Sub(plus, minus), du + r * kFavorColumns + j, n);
          dh[r] = hn::Sub(dh[r], hn::Add(plus, minus));
        }
      }
      favor_add_projection(map, block, first, width, du, dx + first_row * dx_stride, dx_stride);
    }
    for (int64_t r = 0; r < block; ++r) {
      const float* in = x + (first_row + r) * x_stride;
      float* out = dx + (first_row + r) * dx_stride;
      const VecF32 weight = hn::Mul(scale, hn::SumOfLanes(d, dh[r]));
      for (int64_t i = 0; i < dim; i += kLanes) {
        const int64_t n = std::min(kLanes, dim - i);
        const VecF32 sum = hn::MulAdd(weight, load_partial(in + i, n), load_partial(out + i, n));
        store_partial(hn::Mul(scale, sum), out + i, n);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(identity_forward);
HWY_EXPORT(identity_backward);
HWY_EXPORT(elu_plus_one_forward);
HWY_EXPORT(elu_plus_one_backward);
HWY_EXPORT(relu_forward);
HWY_EXPORT(relu_backward);
HWY_EXPORT(squared_relu_forward);
HWY_EXPORT(squared_relu_backward);
HWY_EXPORT(favor_forward);
HWY_EXPORT(favor_backward);

}  // namespace

// Dispatch happens here, once per block of rows.
#define TARN_ELEMENTWISE_MAP(name, bf16_form)                                                    \
  FeatureMap name##_map(int64_t dim) {                                                           \
    return {.input_dim = dim,                                                                    \
            .feature_dim = dim,                                                                  \
            .forward =                                                                           \
                [](const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,        \
                   float* phi) noexcept {                                                        \
                  HWY_DYNAMIC_DISPATCH(name##_forward)(rows, map.input_dim, x, x_stride, phi);   \
                },                                                                               \
            .backward =                                                                          \
                [](const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,        \
                   const float* phi, const float* dphi, float* dx, int64_t dx_stride) noexcept { \
                  HWY_DYNAMIC_DISPATCH(name##_backward)                                          \
                  (rows, map.input_dim, x, x_stride, phi, dphi, dx, dx_stride);                  \
                },                                                                               \
            .forward_bf16 = bf16_form,                                                           \
            .reference = reference::name};                                                       \
  }

TARN_ELEMENTWISE_MAP(identity, nullptr)
TARN_ELEMENTWISE_MAP(elu_plus_one, avx512_bf16_elu_plus_one())
TARN_ELEMENTWISE_MAP(relu, nullptr)
TARN_ELEMENTWISE_MAP(squared_relu, nullptr)

#undef TARN_ELEMENTWISE_MAP

FeatureMap favor_map(int64_t dim, int64_t feature_dim, const float* omega) {
  return {.input_dim = dim,
          .feature_dim = feature_dim,
          .parameters = omega,
          .forward =
              [](const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                 float* phi) noexcept {
                HWY_DYNAMIC_DISPATCH(favor_forward)(map, rows, x, x_stride, phi);
              },
          .backward =
              [](const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                 const float* phi, const float* dphi, float* dx, int64_t dx_stride) noexcept {
                HWY_DYNAMIC_DISPATCH(favor_backward)
                (map, rows, x, x_stride, phi, dphi, dx, dx_stride);
              },
          .reference = reference::favor};
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
