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
  // Packing goes by lanes of 128 bits, each vector's quarter after the other: this puts them right.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const int64_t whole = finite ? in_dim / 64 * 64 : 0;
  for (i = 0; i < whole; i += 64) {
    __m512i rounded[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512 values = _mm512_loadu_ps(x + i + 16 * j);
      rounded[j] = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse));
    }
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(rounded[0], rounded[1]),
                                             _mm512_packs_epi32(rounded[2], rounded[3]));
    // With the highest bit flipped a signed byte is its value + 128.
    _mm512_storeu_si512(
        to + i, _mm512_xor_si512(_mm512_set1_epi8(-128), _mm512_permutexvar_epi32(order, bytes)));
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

/// Stores 16 outputs of every row, those of vector `j`. The branch stands outside of the loop.
template <int kRows>
TARN_AVX512 inline void store_column(const ReducedTile& tile, int j, __m512 (&values)[kRows]) {
  if (tile.relu) {
    // The second operand where one is NaN: it stays.
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) values[r] = _mm512_max_ps(_mm512_setzero_ps(), values[r]);
  }
  const __mmask16 lanes = first_lanes(tile.columns - 16 * j);
  float* out = tile.out + 16 * j;
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r, out += tile.out_stride) {
    _mm512_mask_storeu_ps(out, lanes, values[r]);
  }
}

TARN_AVX512 inline __m512 old_output(const ReducedTile& tile, int r, int j) {
  return _mm512_maskz_loadu_ps(first_lanes(tile.columns - 16 * j),
                               tile.out + r * tile.out_stride + 16 * j);
}

/// Asks for upcoming memory, a line for each element of depth: enough independent products stand
/// between two requests. Without any it asks for a line that is there.
template <int kRows, int kPanels>
struct LinesAhead {
  static constexpr bool kActive = kRows >= 4 && kPanels == 1;
  explicit LinesAhead(const ReducedTile& tile)
      : at(tile.upcoming != nullptr ? tile.upcoming : reinterpret_cast<const char*>(tile.w)),
        line(tile.upcoming != nullptr ? 64 : 0) {}
  template <int kLines>
  void ask() {
    if constexpr (kActive) {
#pragma GCC unroll 4
      for (int i = 0; i < kLines; ++i, at += line) __builtin_prefetch(at, 0, 2);
    }
  }
  const char* at;
  int64_t line;
};

template <int kRows, int kPanels>
TARN_AVX512 __attribute__((noinline)) void bf16_rows(const ReducedTile& shared) {
  constexpr int kColumns = kPanels * kVectors;
  // A copy: the compiler has to assume that stores to the output change what a reference leads to.
  const ReducedTile tile = shared;
  __m512 sum[kColumns][kRows];
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    const __m512 bias = _mm512_loadu_ps(tile.bias + 16 * j);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sum[j][r] = bias;
    if (!tile.accumulate) continue;
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      sum[j][r] = _mm512_add_ps(bias, old_output(tile, r, j));
    }
  }
  const auto* x = reinterpret_cast<const uint16_t*>(tile.x);
  const auto* w = reinterpret_cast<const uint16_t*>(tile.w);
  const int64_t depth = tile.depth;
  const int64_t panel = depth * kWidth;
  LinesAhead<kRows, kPanels> ahead(tile);
  for (int64_t k = 0; k < depth; k += 2, w += 2 * kWidth) {
    ahead.template ask<2>();
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
        sum[j][r] = _mm512_dpbf16_ps(sum[j][r], reinterpret_cast<__m512bh>(value),
                                     reinterpret_cast<__m512bh>(weights[j]));
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) store_column<kRows>(tile, j, sum[j]);
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
  __m512i sum[kColumns][kRows];
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    const __m512i start =
        _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_loadu_si512(tile.offset_sums + 16 * j));
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) sum[j][r] = start;
  }
  const uint8_t* x = tile.x;
  const uint8_t* w = tile.w;
  const int64_t depth = tile.depth;
  const int64_t panel = depth * kWidth;
  LinesAhead<kRows, kPanels> ahead(tile);
  for (int64_t k = 0; k < depth; k += 4, w += 4 * kWidth) {
    ahead.template ask<4>();
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
      for (int j = 0; j < kColumns; ++j) add_products(sum[j][r], value, weights[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    const __m512 bias = _mm512_loadu_ps(tile.bias + 16 * j);
    const __m512 scale = _mm512_loadu_ps(tile.scale + 16 * j);
    __m512 values[kRows];
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) values[r] = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[j][r]), scale);
    if (tile.accumulate) {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const __m512 start = _mm512_add_ps(bias, old_output(tile, r, j));
        values[r] = _mm512_fmadd_ps(values[r], _mm512_set1_ps(tile.row_scale[r]), start);
      }
    } else {
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        values[r] = _mm512_fmadd_ps(values[r], _mm512_set1_ps(tile.row_scale[r]), bias);
      }
    }
    store_column<kRows>(tile, j, values);
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
