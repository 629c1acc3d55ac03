// Matrices of tokens × tokens within a chunk, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_TRANSITION_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_TRANSITION_TOKENS_INL_H_
#undef TARN_KERNELS_CPU_STATE_TRANSITION_TOKENS_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_TRANSITION_TOKENS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/state_transition_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// to[j, i] = from[i, j] for from [rows, columns], in tiles of 4 × 4.
inline void transpose(int64_t rows, int64_t columns, const float* from, int64_t from_stride,
                      float* to, int64_t to_stride) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  for (; i + 4 <= rows; i += 4) {
    const float* tile = from + i * from_stride;
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
      const auto a = hn::LoadU(d, tile + j);
      const auto b = hn::LoadU(d, tile + from_stride + j);
      const auto c = hn::LoadU(d, tile + 2 * from_stride + j);
      const auto e = hn::LoadU(d, tile + 3 * from_stride + j);
      const auto ac_low = hn::InterleaveLower(d, a, c);
      const auto be_low = hn::InterleaveLower(d, b, e);
      const auto ac_high = hn::InterleaveUpper(d, a, c);
      const auto be_high = hn::InterleaveUpper(d, b, e);
      float* at = to + j * to_stride + i;
      hn::StoreU(hn::InterleaveLower(d, ac_low, be_low), d, at);
      hn::StoreU(hn::InterleaveUpper(d, ac_low, be_low), d, at + to_stride);
      hn::StoreU(hn::InterleaveLower(d, ac_high, be_high), d, at + 2 * to_stride);
      hn::StoreU(hn::InterleaveUpper(d, ac_high, be_high), d, at + 3 * to_stride);
    }
    for (; j < columns; ++j) {
      for (int64_t k = 0; k < 4; ++k) to[j * to_stride + i + k] = tile[k * from_stride + j];
    }
  }
#endif
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

/// Tokens that substitute() solves at once.
constexpr int kSolvedTokens = kManyRegisters ? 16 : 8;

/// x_t += Σ_{j<t} m(t, j) x_j for kSolvedTokens rows, in order, one vector of columns in registers.
template <bool kTail>
HWY_INLINE void substitute_block(GemmLeft m, float* x, int64_t stride, const Tail& tail) {
  const F32 d;
  VecF32 row[kSolvedTokens];
  TARN_UNROLL
  for (int t = 0; t < kSolvedTokens; ++t) {
    row[t] = kTail ? load_partial(x + t * stride, tail) : hn::LoadU(d, x + t * stride);
  }
  TARN_UNROLL
  for (int j = 0; j < kSolvedTokens; ++j) {
    TARN_UNROLL
    for (int t = j + 1; t < kSolvedTokens; ++t) {
      const float factor = m.data[t * m.row_stride + j * m.column_stride];
      row[t] = hn::MulAdd(hn::Set(d, factor), row[j], row[t]);
    }
  }
  TARN_UNROLL
  for (int t = 1; t < kSolvedTokens; ++t) {
    if (kTail) {
      store_partial(row[t], x + t * stride, tail);
    } else {
      hn::StoreU(row[t], d, x + t * stride);
    }
  }
}

/// Solves x_t = b_t + Σ_{j<t} m(t, j) x_j in place: x [rows, columns] holds b. Cost rows²·columns.
inline void substitute(int64_t rows, int64_t columns, GemmLeft m, float* x, int64_t stride) {
  for (int64_t t = 0; t < rows; t += kSolvedTokens) {
    const int64_t size = std::min<int64_t>(kSolvedTokens, rows - t);
    const GemmLeft past{m.data + t * m.row_stride, m.row_stride, m.column_stride};
    float* to = x + t * stride;
    if (t > 0) multiply({size, columns, t, past, x, stride, to, stride, true});
    const GemmLeft within{past.data + t * m.column_stride, m.row_stride, m.column_stride};
    if (size == kSolvedTokens) {
      int64_t c = 0;
      const Tail whole(kLanes);
      for (; c + kLanes <= columns; c += kLanes) {
        substitute_block<false>(within, to + c, stride, whole);
      }
      if (c < columns) substitute_block<true>(within, to + c, stride, Tail(columns - c));
      continue;
    }
    for (int64_t i = 1; i < size; ++i) {
      const GemmLeft one{within.data + i * m.row_stride, m.row_stride, m.column_stride};
      multiply({1, columns, i, one, to, stride, to + i * stride, stride, true});
    }
  }
}

/// Products of readers and writers whose channels decay each at its own rate between them.
struct DecayedDots {
  int64_t tokens, channels;
  const float* decay;  ///< [tokens, channels]: of each token
  int64_t decay_stride;
  const float* first;  ///< [tokens, channels]: reads after its token's decay
  int64_t first_stride;
  float first_scale;
  const float* second;  ///< likewise, or before that decay (kExclusive); only earlier writers
  int64_t second_stride;
  float* columns;  ///< [channels, tokens]: the writers, transposed; overwritten
  int64_t columns_stride;
  float* to;  ///< [tokens, tokens]; what lies above the diagonal is left alone or zero
  float* to_second;
  int64_t to_stride;
};

/// Tokens [t, t + kTokens) against the vector of writers [j, j + kLanes). The vector holds each
/// writer as decayed so far, and goes from token to token with all channels: no decay is ever
/// divided by another.
template <bool kFirst, bool kSecond, bool kExclusive, int kTokens>
HWY_NOINLINE void decayed_dots_block(const DecayedDots& p, int64_t t, int64_t j) {
  const F32 d;
  VecF32 first[kTokens];
  VecF32 second[kTokens];
  hn::Mask<F32> earlier[kTokens];
  TARN_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    first[i] = hn::Zero(d);
    second[i] = hn::Zero(d);
    earlier[i] = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(t + i - j, 0)));
  }
  const float* decay = p.decay + t * p.decay_stride;
  const float* x = p.first + t * p.first_stride;
  const float* y = kSecond ? p.second + t * p.second_stride : nullptr;
  float* column = p.columns + j;
  for (int64_t c = 0; c < p.channels; ++c, column += p.columns_stride) {
    VecF32 writers = hn::LoadU(d, column);
    TARN_UNROLL
    for (int i = 0; i < kTokens; ++i) {
      if (kSecond && kExclusive) {
        second[i] = hn::MulAdd(hn::Set(d, y[i * p.second_stride + c]), writers, second[i]);
      }
      const VecF32 alpha = hn::Set(d, decay[i * p.decay_stride + c]);
      writers = hn::IfThenElse(earlier[i], hn::Mul(writers, alpha), writers);
      if (kFirst) {
        first[i] = hn::MulAdd(hn::Set(d, x[i * p.first_stride + c]), writers, first[i]);
      }
      if (kSecond && !kExclusive) {
        second[i] = hn::MulAdd(hn::Set(d, y[i * p.second_stride + c]), writers, second[i]);
      }
    }
    // Only this vector's lanes that are writers: beyond them lie those of another kind.
    store_partial(writers, column, std::min(kLanes, p.tokens - j));
  }
  const Tail tail(std::min(kLanes, p.tokens - j));
  TARN_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    const auto upto = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(t + i - j + 1, 0)));
    const VecF32 scaled = hn::Mul(first[i], hn::Set(d, p.first_scale));
    if (kFirst) {
      store_partial(hn::IfThenElseZero(upto, scaled), p.to + (t + i) * p.to_stride + j, tail);
    }
    if (kSecond) {
      store_partial(hn::IfThenElseZero(earlier[i], second[i]),
                    p.to_second + (t + i) * p.to_stride + j, tail);
    }
  }
}

template <bool kFirst, bool kSecond, bool kExclusive>
void decayed_dots(const DecayedDots& p) {
  constexpr int kTokens = kManyRegisters ? 8 : 4;
  for (int64_t j = 0; j < p.tokens; j += kLanes) {
    int64_t t = j;
    for (; t + kTokens <= p.tokens; t += kTokens) {
      decayed_dots_block<kFirst, kSecond, kExclusive, kTokens>(p, t, j);
    }
    for (; t < p.tokens; ++t) decayed_dots_block<kFirst, kSecond, kExclusive, 1>(p, t, j);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_TRANSITION_TOKENS_INL_H_
