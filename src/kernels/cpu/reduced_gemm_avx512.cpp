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
  return static_cast<__mmask16>((1u << (n < 16 ? n : 16)) - 1u);
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
  __m512 most = _mm512_setzero_ps();
  __m512 poison = _mm512_setzero_ps();  // NaN where a value is not finite
  for (int64_t i = 0; i < in_dim; i += 16) {
    const __m512 values = _mm512_maskz_loadu_ps(first_lanes(in_dim - i), x + i);
    most = _mm512_max_ps(most, _mm512_abs_ps(values));
    poison = _mm512_add_ps(poison, _mm512_mul_ps(values, _mm512_setzero_ps()));
  }
  float largest = _mm512_reduce_max_ps(most);
  if (std::isnan(_mm512_reduce_add_ps(poison))) largest = std::nanf("");
  const bool finite = std::isfinite(largest);
  const __m512 inverse = _mm512_set1_ps(finite && largest > 0.0f ? 127.0f / largest : 0.0f);
  const __m512i middle = _mm512_set1_epi32(128);
  for (int64_t i = 0; i < depth; i += 16) {
    const __mmask16 lanes = finite && i < in_dim ? first_lanes(in_dim - i) : __mmask16{0};
    const __m512 values = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse));
    _mm_mask_storeu_epi8(to + i, first_lanes(depth - i),
                         _mm512_cvtepi32_epi8(_mm512_add_epi32(rounded, middle)));
  }
  return finite ? largest / 127.0f : largest;
}

template <int kRows, int kPanels>
TARN_AVX512 __attribute__((noinline)) void bf16_rows(int64_t depth, const uint16_t* x,
                                                     const uint16_t* w, float* out) {
  constexpr int kColumns = kPanels * kVectors;
  __m512 sum[kRows][kColumns];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      sum[r][j] = _mm512_loadu_ps(out + (r * kColumns + j) * 16);
    }
  }
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
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      _mm512_storeu_ps(out + (r * kColumns + j) * 16, sum[r][j]);
    }
  }
}

template <int kRows, int kPanels>
TARN_AVX512 __attribute__((noinline)) void int8_rows(int64_t depth, const uint8_t* x,
                                                     const int8_t* w, int32_t* out) {
  constexpr int kColumns = kPanels * kVectors;
  __m512i sum[kRows][kColumns];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      sum[r][j] = _mm512_loadu_si512(out + (r * kColumns + j) * 16);
    }
  }
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
      for (int j = 0; j < kColumns; ++j) {
        sum[r][j] = _mm512_dpbusd_epi32(sum[r][j], value, weights[j]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      _mm512_storeu_si512(out + (r * kColumns + j) * 16, sum[r][j]);
    }
  }
}

using Bf16Rows = void (*)(int64_t, const uint16_t*, const uint16_t*, float*);
using Int8Rows = void (*)(int64_t, const uint8_t*, const int8_t*, int32_t*);

template <int... kRows>
void bf16_one_panel(int64_t rows, int64_t depth, const uint16_t* x, const uint16_t* w, float* out,
                    std::integer_sequence<int, kRows...>) {
  static constexpr Bf16Rows kTiles[] = {bf16_rows<kRows + 1, 1>...};
  kTiles[rows - 1](depth, x, w, out);
}

template <int... kRows>
void int8_one_panel(int64_t rows, int64_t depth, const uint8_t* x, const int8_t* w, int32_t* out,
                    std::integer_sequence<int, kRows...>) {
  static constexpr Int8Rows kTiles[] = {int8_rows<kRows + 1, 1>...};
  kTiles[rows - 1](depth, x, w, out);
}

using AllRows = std::make_integer_sequence<int, kReducedTileRows>;

void bf16_tile(int64_t rows, int64_t panels, int64_t depth, const uint16_t* x, const uint16_t* w,
               float* out) {
  static constexpr Bf16Rows kWide[3][3] = {{bf16_rows<1, 2>, bf16_rows<1, 3>, bf16_rows<1, 4>},
                                           {bf16_rows<2, 2>, bf16_rows<2, 3>, bf16_rows<2, 4>},
                                           {bf16_rows<3, 2>, bf16_rows<3, 3>, bf16_rows<3, 4>}};
  if (panels == 1) return bf16_one_panel(rows, depth, x, w, out, AllRows());
  kWide[rows - 1][panels - 2](depth, x, w, out);
}

void int8_tile(int64_t rows, int64_t panels, int64_t depth, const uint8_t* x, const int8_t* w,
               int32_t* out) {
  static constexpr Int8Rows kWide[3][3] = {{int8_rows<1, 2>, int8_rows<1, 3>, int8_rows<1, 4>},
                                           {int8_rows<2, 2>, int8_rows<2, 3>, int8_rows<2, 4>},
                                           {int8_rows<3, 2>, int8_rows<3, 3>, int8_rows<3, 4>}};
  if (panels == 1) return int8_one_panel(rows, depth, x, w, out, AllRows());
  kWide[rows - 1][panels - 2](depth, x, w, out);
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
