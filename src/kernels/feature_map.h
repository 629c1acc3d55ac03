#pragma once

#include <cstdint>

namespace tarn::kernels {

/// A feature map φ applied to the rows of one head, block by block, so that no kernel ever holds
/// φ(q) or φ(k) for a whole sequence. Plain data: kernels call through the two pointers.
struct FeatureMap {
  int64_t input_dim = 0;
  int64_t feature_dim = 0;
  /// Read-only constants of the map (FAVOR+: projection ω [input_dim, feature_dim / 2]); or null.
  const float* parameters = nullptr;
  /// phi [rows, feature_dim] dense = φ(x), x row-strided.
  void (*forward)(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                  float* phi) noexcept = nullptr;
  /// dx = (∂φ/∂x)ᵀ dphi; `phi` is what forward gave. dx is overwritten.
  void (*backward)(const FeatureMap& map, int64_t rows, const float* x, int64_t x_stride,
                   const float* phi, const float* dphi, float* dx,
                   int64_t dx_stride) noexcept = nullptr;
  /// φ of rows in bf16 (their bits), rounded to it: phi [rows, feature_dim] dense. Null where the CPU
  /// or the map has no such form; dimensions are multiples of 32.
  void (*forward_bf16)(const FeatureMap& map, int64_t rows, const uint16_t* x, int64_t x_stride,
                       uint16_t* phi) noexcept = nullptr;
  /// One row in double precision: the definition that the fast forms are tested against.
  void (*reference)(const FeatureMap& map, const double* x, double* phi) = nullptr;
};

/// φ(x) = x.
FeatureMap identity_map(int64_t dim);
/// φ(x) = elu(x) + 1 (Katharopoulos 2020, eq. 7).
FeatureMap elu_plus_one_map(int64_t dim);
/// φ(x) = max(x, 0).
FeatureMap relu_map(int64_t dim);
/// φ(x) = max(x, 0)².
FeatureMap squared_relu_map(int64_t dim);
/// Deterministic parameter-free projection (Schlag 2021, arXiv 2102.11174, eq. 37): with
/// r = max([x, -x], 0), 2·dim channels, φ = [r_m · r_{m+1} for all m, …, r_m · r_{m+order}], indices
/// modulo 2·dim. feature_dim = 2·dim·order.
FeatureMap dpfp_map(int64_t dim, int64_t order);
/// The exponential's Taylor polynomial as a product (Arora 2024, arXiv 2402.18668, section 4.1):
/// φ = [1, x/dim^(1/4), x_i·x_j/√(2·dim)], so that φ(q)·φ(k) = 1 + s + s²/2, s = q·k/√dim, never
/// below 1/2. feature_dim = 1 + dim + dim².
FeatureMap taylor_map(int64_t dim);
/// FAVOR+ positive random features (Choromanski 2021, arXiv 2009.14794), constants as in
/// fast-transformers `feature_maps/fourier_features.py` class Favor: x' = x·dim^(-1/4), u = x'ω,
/// φ = [exp(u − h), exp(−u − h)] with h = |x'|²/2 + ½·log(feature_dim).
/// `omega` [dim, feature_dim / 2] must outlive the map.
FeatureMap favor_map(int64_t dim, int64_t feature_dim, const float* omega);
/// Fills `omega` [dim, columns] with orthogonal Gaussian directions from `seed` (blocks of `dim`
/// orthogonal columns whose lengths are those of independent Gaussian vectors).
void draw_orthogonal_features(int64_t dim, int64_t columns, uint64_t seed, float* omega);

}  // namespace tarn::kernels
