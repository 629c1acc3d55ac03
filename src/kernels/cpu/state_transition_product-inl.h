// Products of matrices of a chunk, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_TRANSITION_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_TRANSITION_PRODUCT_INL_H_
#undef TARN_KERNELS_CPU_STATE_TRANSITION_PRODUCT_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_TRANSITION_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// C = A·B, C += A·B, or C = f∘C + A·B with one factor per row of C: small_gemm for few rows, which
/// are split into equal blocks, and for a matrix that decays before it grows. A [rows, depth] by any
/// two strides; B and C with column stride 1; C aliases neither.
struct ChunkProduct {
  int64_t rows, columns, depth;
  GemmLeft a;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  bool accumulate = false;
  const float* factors = nullptr;  ///< with accumulate: of C's rows; null means 1
};

/// kRows rows × kVectors vectors of C over the whole depth.
template <int kVectors, bool kTail, int kRows>
HWY_NOINLINE void chunk_product_block(const ChunkProduct& p, int64_t i, int64_t j, int64_t size) {
  const F32 d;
  const Tail tail(size);
  VecF32 sum[kRows][kVectors];
  float* c = p.c + i * p.c_stride + j;
  TARN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TARN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const float* from = c + r * p.c_stride + v * kLanes;
      if (!p.accumulate) {
        sum[r][v] = hn::Zero(d);
      } else {
        sum[r][v] = kTail && v == kVectors - 1 ? load_partial(from, tail) : hn::LoadU(d, from);
      }
    }
  }
  if (p.factors != nullptr) {
    TARN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const VecF32 factor = hn::Set(d, p.factors[i + r]);
      TARN_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Mul(sum[r][v], factor);
    }
  }
  const int64_t a_row = p.a.row_stride;
  const int64_t a_column = p.a.column_stride;
  const int64_t b_stride = p.b_stride;
  const float* HWY_RESTRICT a = p.a.data + i * a_row;
  const float* HWY_RESTRICT b = p.b + j;
  for (int64_t k = p.depth; k > 0; --k, a += a_column, b += b_stride) {
    VecF32 row[kVectors];
    TARN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      row[v] = kTail && v == kVectors - 1 ? load_partial(b + v * kLanes, tail)
                                          : hn::LoadU(d, b + v * kLanes);
    }
    TARN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const VecF32 scalar = hn::Set(d, a[r * a_row]);
      TARN_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(scalar, row[v], sum[r][v]);
    }
  }
  TARN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TARN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + r * p.c_stride + v * kLanes;
      if (kTail && v == kVectors - 1) {
        store_partial(sum[r][v], to, tail);
      } else {
        hn::StoreU(sum[r][v], d, to);
      }
    }
  }
}

using ChunkProductBlock = void (*)(const ChunkProduct& p, int64_t i, int64_t j, int64_t size);

/// Blocks of 1, 2, … rows.
template <int kVectors, bool kTail, int... kMinusOne>
constexpr std::array<ChunkProductBlock, sizeof...(kMinusOne)> chunk_product_blocks(
    std::integer_sequence<int, kMinusOne...>) {
  return {chunk_product_block<kVectors, kTail, kMinusOne + 1>...};
}

/// All rows of kVectors vectors from column j.
template <int kVectors>
HWY_INLINE void chunk_product_panel(const ChunkProduct& p, int64_t j, int64_t tail) {
  constexpr int kMostRows = kVectors == kGemmVectors ? 6 : 8;
  using Sizes = std::make_integer_sequence<int, kMostRows>;
  static constexpr auto kWithTail = chunk_product_blocks<kVectors, true>(Sizes());
  static constexpr auto kWhole = chunk_product_blocks<kVectors, kMaskedIsFree>(Sizes());
  const auto& blocks = tail == kLanes ? kWhole : kWithTail;
  const int64_t count = (p.rows + kMostRows - 1) / kMostRows;
  int64_t i = 0;
  for (int64_t block = 0; block < count; ++block) {
    const int64_t size = (p.rows - i) / (count - block);
    blocks[static_cast<size_t>(size - 1)](p, i, j, tail);
    i += size;
  }
}

inline void multiply(const ChunkProduct& p) {
  constexpr int64_t kPanel = kGemmVectors * kLanes;
  for (int64_t j = 0; j < p.columns; j += kPanel) {
    const int64_t width = std::min(kPanel, p.columns - j);
    const int64_t vectors = (width + kLanes - 1) / kLanes;
    const int64_t tail = width - (vectors - 1) * kLanes;
    switch (vectors) {
      case 1: chunk_product_panel<1>(p, j, tail); break;
      case 2: chunk_product_panel<2>(p, j, tail); break;
#if !(HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3)
      case 3: chunk_product_panel<3>(p, j, tail); break;
      case 4: chunk_product_panel<4>(p, j, tail); break;
#endif
      default: break;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_TRANSITION_PRODUCT_INL_H_
