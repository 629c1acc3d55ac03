#pragma once

#include <cstdint>

#include "kernels/feature_map.h"

namespace tarn::kernels {

/// Tokens per block of the bf16 form of the state update.
inline constexpr int64_t kBf16Tokens = 32;

/// One block of at most 32 tokens of one head, in products of bf16 numbers that are summed in f32.
/// With Q, K the block's φ(q), φ(k), V its values and S the state before it,
///   out = (Q·S + tril(Q·Kᵀ)·V) / (Q·z + Σ tril(Q·Kᵀ) + ε),  S += Kᵀ·V,  z += Σ K.
struct Bf16Block {
  int64_t tokens = 0;
  int64_t features = 0;         ///< F, a multiple of 32
  int64_t values = 0;           ///< V, a multiple of 32
  uint16_t* phi_q = nullptr;    ///< [32, F] dense; rows from `tokens` on are zeroed
  uint16_t* phi_k = nullptr;    ///< likewise
  const uint16_t* v = nullptr;  ///< [tokens, V]
  int64_t v_stride = 0;
  float* s = nullptr;           ///< [F, V]
  uint32_t* s_pairs = nullptr;  ///< [F/2, V]: rows 2i and 2i+1 of s in bf16, kept up to date
  float* z = nullptr;           ///< [F]; null: no division
  float eps = 0.0f;
  uint16_t* out = nullptr;  ///< [tokens, V]
  int64_t out_stride = 0;
  float* denominator = nullptr;  ///< [tokens]; or null
  int64_t denominator_stride = 0;
  /// What the next block reads, to ask for on the way; or null.
  const void* const* ahead = nullptr;
  int64_t ahead_count = 0;
  uint16_t* scratch = nullptr;  ///< bf16_scratch_size(F, V) elements, 64-byte aligned
};

constexpr int64_t bf16_scratch_size(int64_t features, int64_t values) {
  return kBf16Tokens * (2 * features + values + kBf16Tokens) + features;
}

/// For one kind of CPU.
struct Bf16BlockKernels {
  /// Fills s_pairs from s.
  void (*round_state)(const Bf16Block& block);
  void (*run)(const Bf16Block& block);
  /// to [rows, width] dense = x in f32; width a multiple of 32.
  void (*widen)(int64_t rows, int64_t width, const uint16_t* x, int64_t stride, float* to);
  /// to [rows, width] dense = x, dense, in bf16.
  void (*round)(int64_t rows, int64_t width, const float* x, uint16_t* to);
};

/// FeatureMap::forward_bf16 of elu(x) + 1, within 2⁻¹² before the rounding; null where the CPU or the
/// build lacks the instructions.
using Bf16Map = void (*)(const FeatureMap& map, int64_t rows, const uint16_t* x, int64_t x_stride,
                         uint16_t* phi) noexcept;
Bf16Map avx512_bf16_elu_plus_one();

/// With AVX-512's dot product of bf16 pairs; null where the CPU or the build lacks it.
const Bf16BlockKernels* avx512_bf16_block_kernels();

}  // namespace tarn::kernels
