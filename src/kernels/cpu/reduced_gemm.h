#pragma once

#include <cstdint>

#include "base/buffer.h"
#include "base/threads.h"
#include "kernels/cpu/gemm.h"
#include "kernels/gemm.h"

namespace tarn::kernels {

/// Outputs per panel, whatever the kernels.
inline constexpr int64_t kReducedPanelWidth = 32;
/// Most rows and panels of one call of a tile.
inline constexpr int kReducedTileRows = 12;

/// A weight [out_dim, in_dim] in a format narrower than f32, as panels
/// [out_dim/32][in_dim/g][32][g] with g = 2 for bf16, 4 for int8: what one instruction multiplies
/// and sums lies together. Padded with zeros.
struct ReducedPanels {
  WeightFormat format = WeightFormat::kBF16;
  int64_t out_dim = 0;
  int64_t in_dim = 0;
  int64_t depth = 0;  ///< in_dim rounded up to whole groups
  int64_t num_panels = 0;
  Buffer<uint8_t> weights;
  Buffer<float> bias;           // [num_panels · 32]
  Buffer<float> scale;          // int8: of every output, weight = scale · integer
  Buffer<int32_t> offset_sums;  // int8: 128 · Σ integers of every output

  int64_t group() const { return format == WeightFormat::kInt8 ? 4 : 2; }
  int64_t element_bytes() const { return format == WeightFormat::kInt8 ? 1 : 2; }
  int64_t panel_bytes() const { return depth * kReducedPanelWidth * element_bytes(); }
  int64_t size_bytes() const;
};

ReducedPanels pack_reduced(const float* weight, const float* bias, int64_t out_dim, int64_t in_dim,
                           WeightFormat format);

using ReducedProduct = ProductWith<ReducedPanels>;

/// At most 12 rows of inputs in reduced form times one panel, or 3 rows times up to four:
///   out = f(bias + [old out if `accumulate`] + x·w), f = relu or nothing.
/// int8 multiplies the exact sum of x·w − offset_sums by row_scale·scale; bf16 adds products to the
/// f32 start in order of k.
struct ReducedTile {
  int64_t rows = 0;
  int64_t panels = 0;
  int64_t depth = 0;             ///< in elements
  const uint8_t* x = nullptr;    ///< [rows, depth] dense: uint16_t (bf16) or uint8_t (value + 128)
  const uint8_t* w = nullptr;    ///< consecutive panels
  const float* bias = nullptr;   ///< [32·panels], as are scale and offset_sums
  const float* scale = nullptr;  ///< int8 only, as the next two
  const int32_t* offset_sums = nullptr;
  const float* row_scale = nullptr;  ///< [rows]
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t columns = 0;  ///< outputs that exist, ≤ 32·panels
  bool accumulate = false;
  bool relu = false;
  /// 64·depth bytes to ask for on the way, or null.
  const char* upcoming = nullptr;
};

/// The inner loops, for one kind of CPU.
struct ReducedKernels {
  const char* name;
  /// to[i] = x[i] rounded to bf16, zeros up to `depth`.
  void (*round_row)(int64_t in_dim, int64_t depth, const float* x, uint16_t* to);
  /// to[i] = 128 + the nearest integer to x[i]·127/largest |x|, 128 up to `depth`; returns
  /// largest/127. A row with a NaN or an infinity gives a scale that is not finite.
  float (*quantise_row)(int64_t in_dim, int64_t depth, const float* x, uint8_t* to);
  void (*bf16_tile)(const ReducedTile& tile);
  void (*int8_tile)(const ReducedTile& tile);
};

/// Plain loops, for every CPU.
const ReducedKernels& generic_reduced_kernels();
/// With AVX-512's dot products of bf16 and of bytes; null where the CPU or the build lacks them.
const ReducedKernels* avx512_reduced_kernels();

void multiply_reduced(const ReducedKernels& kernels, const ReducedProduct& product,
                      ThreadPool* pool) noexcept;

}  // namespace tarn::kernels
