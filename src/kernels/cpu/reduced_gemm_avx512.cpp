#include "kernels/cpu/reduced_gemm.h"

#ifdef __x86_64__
#ifndef __clang__
// gcc 12 takes the undefined values in its own header for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <utility>

// Highway 1.0.3 has neither product, so these two are written with the instructions themselves.
// The attribute, not the file's flags, names the target: inline functions of shared headers then
// stay runnable everywhere.
#define TARN_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16,avx512vnni")))

namespace tarn::kernels {
namespace {

constexpr int64_t kWidth = kReducedPanelWidth;
constexpr int kVectors = 2;  // per panel

TARN_AVX512 __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>((1u << (n < 0 ? 0 : n < 16 ? n : 16)) - 1u);
}

TARN_AVX512 void round_row(int64_t in_dim, int64_t depth, const float* x, uint16_t* to) {
  for (int64_t i = 0; i < depth; i += 16) {
    const __m512 values =
        _mm512_maskz_loadu_ps(i < in_dim ? first_lanes(in_dim - i) : __mmask16{0}, x + i);
    const __m256bh rounded = _mm512_cvtneps_pbh(values);
    __m256i bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    _mm256_mask_storeu_epi16(to + i, first_lanes(depth - i), bits);
  }
}

TARN_AVX512 float quantise_row(int64_t in_dim, int64_t depth, const float* x, uint8_t* to) {
  // As integers, absolute values have the order of the floats, with infinities and NaN on top.
  const __m512i absolute = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();
  __m512i more = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + 32 <= in_dim; i += 32) {
    most = _mm512_max_epu32(most, _mm512_and_si512(absolute, _mm512_loadu_si512(x + i)));
    more = _mm512_max_epu32(more, _mm512_and_si512(absolute, _mm512_loadu_si512(x + i + 16)));
  }
  for (; i < in_dim; i += 16) {
    const __m512i bits = _mm512_maskz_loadu_epi32(first_lanes(in_dim - i), x + i);
    most = _mm512_max_epu32(most, _mm512_and_si512(absolute, bits));
  }
  const uint32_t largest_bits = _mm512_reduce_max_epu32(_mm512_max_epu32(most, more));
  float largest = 0.0f;
  std::memcpy(&largest, &largest_bits, sizeof largest);
  const bool finite = std::isfinite(largest);
  const __m512 inverse = _mm512_set1_ps(finite && largest > 0.0f ? 127.0f / largest : 0.0f);
  const __m512i middle = _mm512_set1_epi32(128);
  const int64_t whole = finite ? in_dim / 16 * 16 : 0;
  for (i = 0; i < whole; i += 16) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm512_cvtepi32_epi8(_mm512_add_epi32(rounded, middle)));
  }
  for (; i < depth; i += 16) {
    const __mmask16 lanes = finite ? first_lanes(in_dim - i) : __mmask16{0};
    const __m512 values = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse));
    _mm_mask_storeu_epi8(to + i, first_lanes(depth - i),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(rounded, middle)));
  }
  return finite ? largest / 127.0f : largest;
}

/// bias, plus the old output when accumulating.
TARN_AVX512 __m512 start_of(const ReducedTile& tile, __mmask16 lanes, int row, int vector) {
  const __m512 bias = _mm512_loadu_ps(tile.bias + 16 * vector);
  if (!tile.accumulate) return bias;
  const float* old = tile.out + row * tile.out_stride + 16 * vector;
  return _mm512_add_ps(bias, _mm512_maskz_loadu_ps(lanes, old));
}

TARN_AVX512 void finish(const ReducedTile& tile, __mmask16 lanes, int row, int vector,
                        __m512 value) {
  const __m512 zero = _mm512_setzero_ps();
  // Not "above zero", so that NaN stays.
  if (tile.relu) {
    value = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(value, zero, _CMP_NLE_UQ), value);
  }
  _mm512_mask_storeu_ps(tile.out + row * tile.out_stride + 16 * vector, lanes, value);
}

template <int kRows, int kPanels>
TARN_AVX512 __attribute__((noinline)) void bf16_rows(const ReducedTile& shared) {
  constexpr int kColumns = kPanels * kVectors;
  // A copy: the compiler has to assume that stores to the output change what a reference leads to.
  const ReducedTile tile = shared;
  __m512 sum[kRows][kColumns];
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    const __mmask16 lanes = first_lanes(tile.columns - 16 * j);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sum[r][j] = start_of(tile, lanes, r, j);
  }
  const auto* x = reinterpret_cast<const uint16_t*>(tile.x);
  const auto* w = reinterpret_cast<const uint16_t*>(tile.w);
  const int64_t depth = tile.depth;
  const int64_t panel = depth * kWidth;
  for (int64_t k = 0; k < depth; k += 2, w += 2 * kWidth) {
    __m512i weights[kColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      weights[j] = _mm512_loadu_si512(w + j / kVectors * panel + j % kVectors * 32);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int pair = 0;
      std::memcpy(&pair, x + r * depth + k, sizeof pair);
      const __m512i value = _mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) {
        sum[r][j] = _mm512_dpbf16_ps(sum[r][j], reinterpret_cast<__m512bh>(value),
                                     reinterpret_cast<__m512bh>(weights[j]));
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    const __mmask16 lanes = first_lanes(tile.columns - 16 * j);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) finish(tile, lanes, r, j, sum[r][j]);
  }
}

/// sum += the products of bytes, four at a time; `x` unsigned, `w` signed. Not the intrinsic: gcc 12
/// copies every sum of it and stores a dozen to the stack, in the innermost loop.
TARN_AVX512 __attribute__((always_inline)) inline void add_products(__m512i& sum, __m512i x,
                                                                    __m512i w) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
}

template <int kRows, int kPanels>
TARN_AVX512 __attribute__((noinline)) void int8_rows(const ReducedTile& shared) {
  constexpr int kColumns = kPanels * kVectors;
  const ReducedTile tile = shared;  // as above
  __m512i sum[kRows][kColumns];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) sum[r][j] = _mm512_setzero_si512();
  }
  const uint8_t* x = tile.x;
  const uint8_t* w = tile.w;
  const int64_t depth = tile.depth;
  const int64_t panel = depth * kWidth;
  for (int64_t k = 0; k < depth; k += 4, w += 4 * kWidth) {
    __m512i weights[kColumns];
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      weights[j] = _mm512_loadu_si512(w + j / kVectors * panel + j % kVectors * 64);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int four = 0;
      std::memcpy(&four, x + r * depth + k, sizeof four);
      const __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) add_products(sum[r][j], value, weights[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    const __mmask16 lanes = first_lanes(tile.columns - 16 * j);
    const __m512i offset = _mm512_loadu_si512(tile.offset_sums + 16 * j);
    const __m512 scale = _mm512_loadu_ps(tile.scale + 16 * j);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[r][j], offset));
      const __m512 unit = _mm512_mul_ps(_mm512_set1_ps(tile.row_scale[r]), scale);
      finish(tile, lanes, r, j,
             _mm512_add_ps(start_of(tile, lanes, r, j), _mm512_mul_ps(exact, unit)));
    }
  }
}

using Rows = void (*)(const ReducedTile&);

template <int... kRows>
void bf16_one_panel(const ReducedTile& tile, std::integer_sequence<int, kRows...>) {
  static constexpr Rows kTiles[] = {bf16_rows<kRows + 1, 1>...};
  kTiles[tile.rows - 1](tile);
}

template <int... kRows>
void int8_one_panel(const ReducedTile& tile, std::integer_sequence<int, kRows...>) {
  static constexpr Rows kTiles[] = {int8_rows<kRows + 1, 1>...};
  kTiles[tile.rows - 1](tile);
}

using AllRows = std::make_integer_sequence<int, kReducedTileRows>;

void bf16_tile(const ReducedTile& tile) {
  static constexpr Rows kWide[3][3] = {{bf16_rows<1, 2>, bf16_rows<1, 3>, bf16_rows<1, 4>},
                                       {bf16_rows<2, 2>, bf16_rows<2, 3>, bf16_rows<2, 4>},
                                       {bf16_rows<3, 2>, bf16_rows<3, 3>, bf16_rows<3, 4>}};
  if (tile.panels == 1) return bf16_one_panel(tile, AllRows());
  kWide[tile.rows - 1][tile.panels - 2](tile);
}

void int8_tile(const ReducedTile& tile) {
  static constexpr Rows kWide[3][3] = {{int8_rows<1, 2>, int8_rows<1, 3>, int8_rows<1, 4>},
                                       {int8_rows<2, 2>, int8_rows<2, 3>, int8_rows<2, 4>},
                                       {int8_rows<3, 2>, int8_rows<3, 3>, int8_rows<3, 4>}};
  if (tile.panels == 1) return int8_one_panel(tile, AllRows());
  kWide[tile.rows - 1][tile.panels - 2](tile);
}

}  // namespace

const ReducedKernels* avx512_reduced_kernels() {
  static constexpr ReducedKernels kKernels{"avx512", round_row, quantise_row, bf16_tile, int8_tile};
  static const bool supported =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bf16") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0;
  return supported ? &kKernels : nullptr;
}

}  // namespace tarn::kernels

#else

namespace tarn::kernels {
const ReducedKernels* avx512_reduced_kernels() { return nullptr; }
}  // namespace tarn::kernels

#endif
