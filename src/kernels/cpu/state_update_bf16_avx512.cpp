#include "kernels/cpu/state_update_bf16.h"

#ifdef __x86_64__
#ifndef __clang__
// gcc 12 takes the undefined values in its own header for mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

// As in reduced_gemm_avx512.cpp: Highway 1.0.3 lacks the product, and the attribute, not the file's
// flags, names the target.
#define TARN_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace tarn::kernels {
namespace {

constexpr int64_t kT = kBf16Tokens;

/// Where a block's operands lie, all in bf16. A "pair" is two neighbours along the summed dimension
/// in one 32-bit word: what one lane of the dot product takes.
struct Operands {
  explicit Operands(const Bf16Block& b)
      : k_pairs(reinterpret_cast<uint32_t*>(b.scratch)),
        k_columns(k_pairs + kT / 2 * b.features),
        v_pairs(k_columns + kT / 2 * b.features),
        weights(reinterpret_cast<uint16_t*>(v_pairs + kT / 2 * b.values)),
        z(weights + kT * kT) {}
  uint32_t* k_pairs;    // [T/2, F]: tokens 2i, 2i+1
  uint32_t* k_columns;  // [F/2, T]: features 2i, 2i+1 of every token
  uint32_t* v_pairs;    // [T/2, V]: tokens 2i, 2i+1
  uint16_t* weights;    // [T, T]: tril(Q·Kᵀ)
  uint16_t* z;          // [F]: before the block
};

TARN_AVX512 inline __m512bh as_bf16(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }
TARN_AVX512 inline __m512i as_bits(__m512bh values) { return reinterpret_cast<__m512i>(values); }
TARN_AVX512 inline __m512bh load_pairs(const void* from) {
  return as_bf16(_mm512_loadu_si512(from));
}
TARN_AVX512 inline __m512bh broadcast_pair(const void* from) {
  int32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return as_bf16(_mm512_set1_epi32(pair));
}
/// Word i of both halves side by side in lane i.
TARN_AVX512 inline __m512i interleave_order() {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_or_si512(lane,
                         _mm512_slli_epi32(_mm512_add_epi32(lane, _mm512_set1_epi32(16)), 16));
}
/// Two rows of 16 floats as pairs.
TARN_AVX512 inline __m512i pairs_of(__m512 even, __m512 odd, __m512i order) {
  return _mm512_permutexvar_epi16(order, as_bits(_mm512_cvtne2ps_pbh(odd, even)));
}

TARN_AVX512 void widen(int64_t rows, int64_t width, const uint16_t* x, int64_t stride, float* to) {
  for (int64_t row = 0; row < rows; ++row, x += stride) {
    for (int64_t i = 0; i < width; i += 16, to += 16) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
      _mm512_storeu_si512(to, _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    }
  }
}

TARN_AVX512 void round_rows(int64_t rows, int64_t width, const float* x, uint16_t* to) {
  for (int64_t i = 0; i < rows * width; i += 32) {
    const __m512bh rounded =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
    _mm512_storeu_si512(to + i, as_bits(rounded));
  }
}

/// elu(x) + 1 with relative error 2⁻¹³: e^x = 2ⁿ·2^r, |r| ≤ 1/2, the cubic is a least-squares fit.
TARN_AVX512 inline __m512 elu_plus_one(__m512 x) {
  // Second operands of minima and maxima are kept when they are NaN; e^-200 is zero.
  const __m512 below =
      _mm512_max_ps(_mm512_set1_ps(-200.0f), _mm512_min_ps(_mm512_setzero_ps(), x));
  const __m512 log2e = _mm512_set1_ps(1.44269504f);
  const __m512 magic = _mm512_set1_ps(12582912.0f);  // 1.5·2²³: its sum is rounded to an integer
  const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(below, log2e, magic), magic);
  const __m512 r = _mm512_fmsub_ps(below, log2e, n);
  __m512 power = _mm512_fmadd_ps(r, _mm512_set1_ps(0.05508877f), _mm512_set1_ps(0.24260466f));
  power = _mm512_fmadd_ps(r, power, _mm512_set1_ps(0.6932763f));
  power = _mm512_fmadd_ps(r, power, _mm512_set1_ps(0.9999289f));
  const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_mask_add_ps(_mm512_scalef_ps(power, n), positive, x, _mm512_set1_ps(1.0f));
}

TARN_AVX512 void elu_plus_one_rows(const FeatureMap& map, int64_t rows, const uint16_t* x,
                                   int64_t x_stride, uint16_t* phi) noexcept {
  const __m512i order = interleave_order();
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int64_t row = 0; row < rows; ++row, x += x_stride, phi += map.input_dim) {
    for (int64_t i = 0; i < map.input_dim; i += 32) {
      const __m512i bits = _mm512_loadu_si512(x + i);
      const __m512 even = elu_plus_one(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
      const __m512 odd = elu_plus_one(_mm512_castsi512_ps(_mm512_and_si512(bits, upper)));
      _mm512_storeu_si512(phi + i, pairs_of(even, odd, order));
    }
  }
}

/// to [T/2, width] = rows 2i and 2i+1 of x as pairs; rows from `tokens` on count as zeros.
TARN_AVX512 void pair_rows(int64_t tokens, int64_t width, const uint16_t* x, int64_t stride,
                           uint32_t* to) {
  const __m512i order = interleave_order();
  const __m512i low = _mm512_mask_add_epi16(order, 0xaaaaaaaau, order, _mm512_set1_epi16(16));
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t row = 0; row < kT; row += 2, x += 2 * stride, to += width) {
    const __mmask32 has_even = row < tokens ? 0xffffffffu : 0u;
    const __mmask32 has_odd = row + 1 < tokens ? 0xffffffffu : 0u;
    for (int64_t i = 0; i < width; i += 32) {
      const __m512i even = _mm512_maskz_loadu_epi16(has_even, x + i);
      const __m512i odd = _mm512_maskz_loadu_epi16(has_odd, x + i + stride);
      _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to + i + 16, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

/// to [16, 16] (row stride kT) = fromᵀ, words of 32 bits, row stride in words.
TARN_AVX512 inline void transpose_words(const uint32_t* from, int64_t stride, uint32_t* to) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * stride);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // a[4g + c]: column c of each 128-bit lane, rows 4g … 4g+3.
  for (int c = 0; c < 4; ++c) {
    const __m512i r0 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88);
    const __m512i r1 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    const __m512i r2 = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    const __m512i r3 = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    _mm512_storeu_si512(to + c * kT, _mm512_shuffle_i32x4(r0, r1, 0x88));
    _mm512_storeu_si512(to + (8 + c) * kT, _mm512_shuffle_i32x4(r0, r1, 0xdd));
    _mm512_storeu_si512(to + (4 + c) * kT, _mm512_shuffle_i32x4(r2, r3, 0x88));
    _mm512_storeu_si512(to + (12 + c) * kT, _mm512_shuffle_i32x4(r2, r3, 0xdd));
  }
}

TARN_AVX512 void transpose_keys(int64_t features, const uint16_t* k, uint32_t* columns) {
  for (int64_t token = 0; token < kT; token += 16) {
    for (int64_t pair = 0; pair < features / 2; pair += 16) {
      uint32_t* to = columns + pair * kT + token;
      transpose_words(reinterpret_cast<const uint32_t*>(k + token * features) + pair, features / 2,
                      to);
    }
  }
}

/// sum[r][c] += a-rows · b over `depth` pairs; row r of a starts at a + r·a_stride (in pairs).
template <int kRows, int kVectors>
TARN_AVX512 inline void add_products(int64_t depth, const uint32_t* a, int64_t a_stride,
                                     int64_t a_step, const uint32_t* b, int64_t b_stride,
                                     __m512 (&sum)[kRows][kVectors]) {
  for (int64_t i = 0; i < depth; ++i) {
    __m512bh column[kVectors];
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) column[c] = load_pairs(b + i * b_stride + 16 * c);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512bh pair = broadcast_pair(a + r * a_stride + i * a_step);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], pair, column[c]);
    }
  }
}

/// Rows [first, first + 8) of tril(Q·Kᵀ).
template <int kVectors>
TARN_AVX512 inline void weigh(const Bf16Block& b, const Operands& at, int64_t first) {
  __m512 sum[8][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_setzero_ps();
  }
  add_products<8, kVectors>(b.features / 2,
                            reinterpret_cast<const uint32_t*>(b.phi_q + first * b.features),
                            b.features / 2, 1, at.k_columns, kT, sum);
#pragma GCC unroll 8
  for (int r = 0; r < 8; ++r) {
    const int64_t row = first + r;
    const auto seen = static_cast<__mmask16>((2u << (row % 16)) - 1u);
    const __m512 low = kVectors == 1 ? _mm512_maskz_mov_ps(seen, sum[r][0]) : sum[r][0];
    const __m512 high =
        kVectors == 1 ? _mm512_setzero_ps() : _mm512_maskz_mov_ps(seen, sum[r][kVectors - 1]);
    _mm512_storeu_si512(at.weights + row * kT, as_bits(_mm512_cvtne2ps_pbh(high, low)));
  }
}

/// 1 / (Q·z + Σ weights + ε) of every token; then z += Σ K.
TARN_AVX512 void divide(const Bf16Block& b, const Operands& at, float* inverse) {
  const __m512bh ones = as_bf16(_mm512_set1_epi16(0x3f80));
  round_rows(1, b.features, b.z, at.z);
  for (int64_t t = 0; t < b.tokens; ++t) {
    __m512 sum = _mm512_dpbf16_ps(_mm512_setzero_ps(), load_pairs(at.weights + t * kT), ones);
    for (int64_t f = 0; f < b.features; f += 32) {
      sum = _mm512_dpbf16_ps(sum, load_pairs(b.phi_q + t * b.features + f), load_pairs(at.z + f));
    }
    const float denominator = _mm512_reduce_add_ps(sum) + b.eps;
    inverse[t] = 1.0f / denominator;
    if (b.denominator != nullptr) b.denominator[t * b.denominator_stride] = denominator;
  }
  for (int64_t f = 0; f < b.features; f += 32) {
    __m512 low = _mm512_loadu_ps(b.z + f);
    __m512 high = _mm512_loadu_ps(b.z + f + 16);
    for (int64_t i = 0; i < kT / 2; ++i) {
      low = _mm512_dpbf16_ps(low, load_pairs(at.k_pairs + i * b.features + f), ones);
      high = _mm512_dpbf16_ps(high, load_pairs(at.k_pairs + i * b.features + f + 16), ones);
    }
    _mm512_storeu_ps(b.z + f, low);
    _mm512_storeu_ps(b.z + f + 16, high);
  }
}

/// Outputs of kRows tokens from `first`, columns [column, column + 16·kVectors).
template <int kRows, int kVectors>
TARN_AVX512 inline void answer(const Bf16Block& b, const Operands& at, int64_t first,
                               int64_t column, const float* inverse) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_setzero_ps();
  }
  add_products<kRows, kVectors>(b.features / 2,
                                reinterpret_cast<const uint32_t*>(b.phi_q + first * b.features),
                                b.features / 2, 1, b.s_pairs + column, b.values, sum);
  add_products<kRows, kVectors>((first + kRows) / 2,
                                reinterpret_cast<const uint32_t*>(at.weights + first * kT), kT / 2,
                                1, at.v_pairs + column, b.values, sum);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (first + r >= b.tokens) break;
    const __m512 scale = _mm512_set1_ps(inverse[first + r]);
    uint16_t* to = b.out + (first + r) * b.out_stride + column;
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; c += 2) {
      const __m512bh rounded =
          _mm512_cvtne2ps_pbh(_mm512_mul_ps(scale, sum[r][c + 1]), _mm512_mul_ps(scale, sum[r][c]));
      _mm512_storeu_si512(to + 16 * c, as_bits(rounded));
    }
  }
}

/// s += Kᵀ·V for kRows features from `first`, columns likewise, and s_pairs.
template <int kRows, int kVectors>
TARN_AVX512 inline void update(const Bf16Block& b, const Operands& at, int64_t first,
                               int64_t column) {
  float* s = b.s + first * b.values + column;
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) sum[r][c] = _mm512_loadu_ps(s + r * b.values + 16 * c);
  }
  add_products<kRows, kVectors>((b.tokens + 1) / 2, at.k_pairs + first, 1, b.features,
                                at.v_pairs + column, b.values, sum);
  const __m512i order = interleave_order();
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r += 2) {
    uint32_t* pairs = b.s_pairs + (first + r) / 2 * b.values + column;
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      _mm512_storeu_ps(s + r * b.values + 16 * c, sum[r][c]);
      _mm512_storeu_ps(s + (r + 1) * b.values + 16 * c, sum[r + 1][c]);
      _mm512_storeu_si512(pairs + 16 * c, pairs_of(sum[r][c], sum[r + 1][c], order));
    }
  }
}

TARN_AVX512 void round_state(const Bf16Block& b) {
  const __m512i order = interleave_order();
  for (int64_t f = 0; f < b.features; f += 2) {
    const float* s = b.s + f * b.values;
    for (int64_t c = 0; c < b.values; c += 16) {
      _mm512_storeu_si512(
          b.s_pairs + f / 2 * b.values + c,
          pairs_of(_mm512_loadu_ps(s + c), _mm512_loadu_ps(s + b.values + c), order));
    }
  }
}

/// Asks for a block's lines in as many steps as it has tiles: a core has few requests under way at a
/// time, and more at once would wait for each other.
struct LinesAhead {
  explicit LinesAhead(const Bf16Block& b) : next(b.ahead), end(b.ahead + b.ahead_count) {
    const int64_t panels = b.values / 64;
    const int64_t rest = b.values % 64 != 0 ? 1 : 0;
    const int64_t tiles =
        4 + panels * (b.tokens / 4 + b.features / 4) + rest * (b.tokens / 8 + b.features / 8);
    per_step = (b.ahead_count + tiles - 1) / tiles;
  }
  void ask() {
    for (int64_t i = 0; i < per_step && next < end; ++i) _mm_prefetch(*next++, _MM_HINT_T0);
  }
  const void* const* next;
  const void* const* end;
  int64_t per_step;
};

/// Outputs and state of columns [column, column + 16·kVectors), in tiles of kRows tokens or features.
template <int kRows, int kVectors>
TARN_AVX512 inline void run_columns(const Bf16Block& b, const Operands& at, int64_t column,
                                    const float* inverse, LinesAhead& ahead) {
  for (int64_t t = 0; t < b.tokens; t += kRows) {
    ahead.ask();
    answer<kRows, kVectors>(b, at, t, column, inverse);
  }
  for (int64_t f = 0; f < b.features; f += kRows) {
    ahead.ask();
    update<kRows, kVectors>(b, at, f, column);
  }
}

TARN_AVX512 void run(const Bf16Block& b) {
  const Operands at(b);
  const auto rest = static_cast<size_t>((kT - b.tokens) * b.features) * sizeof(uint16_t);
  std::memset(b.phi_q + b.tokens * b.features, 0, rest);
  std::memset(b.phi_k + b.tokens * b.features, 0, rest);
  pair_rows(kT, b.features, b.phi_k, b.features, at.k_pairs);
  pair_rows(b.tokens, b.values, b.v, b.v_stride, at.v_pairs);
  transpose_keys(b.features, b.phi_k, at.k_columns);
  LinesAhead ahead(b);
  ahead.ask();
  weigh<1>(b, at, 0);
  ahead.ask();
  weigh<1>(b, at, 8);
  ahead.ask();
  weigh<2>(b, at, 16);
  ahead.ask();
  weigh<2>(b, at, 24);
  float inverse[kT];
  if (b.z != nullptr) {
    divide(b, at, inverse);
  } else {
    for (float& each : inverse) each = 1.0f;
  }
  int64_t column = 0;
  for (; column + 64 <= b.values; column += 64) run_columns<4, 4>(b, at, column, inverse, ahead);
  if (column < b.values) run_columns<8, 2>(b, at, column, inverse, ahead);
}

constexpr Bf16BlockKernels kKernels = {round_state, run, widen, round_rows};

bool is_supported() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

}  // namespace

const Bf16BlockKernels* avx512_bf16_block_kernels() { return is_supported() ? &kKernels : nullptr; }
Bf16Map avx512_bf16_elu_plus_one() { return is_supported() ? elu_plus_one_rows : nullptr; }

}  // namespace tarn::kernels

#else

namespace tarn::kernels {
const Bf16BlockKernels* avx512_bf16_block_kernels() { return nullptr; }
Bf16Map avx512_bf16_elu_plus_one() { return nullptr; }
}  // namespace tarn::kernels

#endif
