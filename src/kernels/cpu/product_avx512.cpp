#include "kernels/cpu/product_kernels.h"

#ifdef __x86_64__
#ifndef __clang__
// gcc 12 takes the undefined values in its own header for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>
#include <utility>

// Highway 1.0.3 lacks this product. The attribute, not the file's flags, names the target: inline
// functions of shared headers then stay runnable everywhere.
#define TARN_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace tarn::kernels {
namespace {

constexpr int64_t kRowsAhead = 16;

TARN_AVX512 __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>((1u << (n <= 0 ? 0 : n < 16 ? n : 16)) - 1u);
}

/// bf16 of low in the lower half, of high in the upper half.
TARN_AVX512 __m512i rounded(__m512 high, __m512 low) {
  const __m512bh narrow = _mm512_cvtne2ps_pbh(high, low);
  __m512i bits;
  std::memcpy(&bits, &narrow, sizeof bits);
  return bits;
}

TARN_AVX512 void round_row(int64_t count, const float* x, uint32_t* to) {
  auto* halves = reinterpret_cast<uint16_t*>(to);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    _mm512_storeu_si512(halves + i, rounded(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i)));
  }
  if (i < count) {
    const __m512i bits = rounded(_mm512_maskz_loadu_ps(first_lanes(count - i - 16), x + i + 16),
                                 _mm512_maskz_loadu_ps(first_lanes(count - i), x + i));
    _mm512_mask_storeu_epi32(halves + i, first_lanes((count - i + 1) / 2), bits);
  }
}

TARN_AVX512 void round_pairs(int64_t rows, int64_t count, const float* x, int64_t stride,
                             uint32_t* to, int64_t width) {
  alignas(64) uint16_t order[32];  // 0, 16, 1, 17 …: interleaves the halves
  for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
  const __m512i interleave = _mm512_load_si512(order);
  for (int64_t r = 0; r < rows; r += 2, x += 2 * stride, to += width) {
    const float* second = x + stride;
    const __mmask16 has_second = r + 1 < rows ? 0xffff : 0;
    int64_t i = 0;
    for (; i < count; i += 16) {
      const __mmask16 lanes = first_lanes(count - i);
      // Rows lie too far apart for the hardware to see them coming.
      _mm_prefetch(reinterpret_cast<const char*>(x + kRowsAhead * stride + i), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(second + kRowsAhead * stride + i), _MM_HINT_T0);
      const __m512i halves =
          rounded(_mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes & has_second), second + i),
                  _mm512_maskz_loadu_ps(lanes, x + i));
      _mm512_mask_storeu_epi32(to + i, first_lanes(width - i),
                               _mm512_permutexvar_epi16(interleave, halves));
    }
    for (; i < width; i += 16) {
      _mm512_mask_storeu_epi32(to + i, first_lanes(width - i), _mm512_setzero_si512());
    }
  }
}

template <int kRows>
TARN_AVX512 __attribute__((noinline)) void tile_rows(int64_t units, const uint32_t* a,
                                                     int64_t row_stride, int64_t unit_stride,
                                                     const uint32_t* b, float* sums) {
  __m512 sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t u = 0; u < units; ++u, a += unit_stride, b += kProductColumns) {
    const __m512i left = _mm512_loadu_si512(b);
    const __m512i right = _mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i pair = _mm512_set1_epi32(static_cast<int>(a[r * row_stride]));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], reinterpret_cast<__m512bh>(pair),
                                   reinterpret_cast<__m512bh>(left));
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], reinterpret_cast<__m512bh>(pair),
                                   reinterpret_cast<__m512bh>(right));
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    _mm512_storeu_ps(sums + r * kProductColumns, sum[r][0]);
    _mm512_storeu_ps(sums + r * kProductColumns + 16, sum[r][1]);
  }
}

using Tile = void (*)(int64_t, const uint32_t*, int64_t, int64_t, const uint32_t*, float*);

template <int... kRows>
Tile tile_of(int64_t rows, std::integer_sequence<int, kRows...>) {
  static constexpr Tile kTiles[] = {tile_rows<kRows + 1>...};
  return kTiles[rows - 1];
}

void tile(int64_t rows, int64_t units, const uint32_t* a, int64_t row_stride, int64_t unit_stride,
          const uint32_t* b, float* sums) {
  tile_of(rows, std::make_integer_sequence<int, kProductRows>())(units, a, row_stride, unit_stride,
                                                                 b, sums);
}

}  // namespace

const Bf16ProductKernels* avx512_bf16_product_kernels() {
  static constexpr Bf16ProductKernels kKernels{"avx512_bf16", tile, round_row, round_pairs};
  static const bool supported =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  return supported ? &kKernels : nullptr;
}

}  // namespace tarn::kernels

#else

namespace tarn::kernels {
const Bf16ProductKernels* avx512_bf16_product_kernels() { return nullptr; }
}  // namespace tarn::kernels

#endif
