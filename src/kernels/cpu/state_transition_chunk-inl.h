// One chunk of the state transition as products of matrices, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_TRANSITION_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_TRANSITION_CHUNK_INL_H_
#undef TARN_KERNELS_CPU_STATE_TRANSITION_CHUNK_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_TRANSITION_CHUNK_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/state_transition_calls.h"
#include "kernels/cpu/state_transition_product-inl.h"
#include "kernels/cpu/state_transition_rows-inl.h"
#include "kernels/cpu/state_transition_tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

// With S the state before the chunk, X readers decayed since the chunk's start, Y writers decayed to
// its end, A = reader · writer with the decay in between (zero for writers that come later), P the
// payload, and E the whole chunk's decay:
//   out = X_q S + A_q P                       S ← E∘S + Yᵀ P
//   kNone:     P = β∘v
//   kDelta:    P = β∘(v − X_k S − A_k P)                   A_k: strictly earlier writers
//   kRankOne:  P = [r; v],  r = X_b S + A_b [r; v]         likewise
// The last two are triangular systems for P.

/// Tokens [row, row + tokens) of one head.
template <bool kChannels, Erase kErase>
struct TransitionChunk {
  static constexpr int kReaders = kErase == Erase::kNone ? 1 : 2;
  static constexpr int kWriters = kErase == Erase::kRankOne ? 2 : 1;
  /// b asks the state before its token's decay.
  static constexpr bool kExclusive = kErase == Erase::kRankOne;

  const StateTransitionProblem& problem;
  const StateTransitionRows<const float>& rows;
  const ChunkScratch& scratch;
  int64_t row, tokens, head;

  int64_t key_dim() const { return problem.key_dim; }
  int64_t value_dim() const { return problem.value_dim; }
  int64_t key_head() const { return head / heads_per_key(problem); }

  const Heads<const float>& reader(int r) const {
    if (r == 0) return rows.q;
    return kErase == Erase::kDelta ? rows.k : rows.b;
  }
  const Heads<const float>& writer(int w) const {
    return kErase == Erase::kRankOne && w == 0 ? rows.a : rows.k;
  }
  const float* reader_row(int r, int64_t t) const { return reader(r).at(row + t, key_head()); }
  const float* writer_row(int w, int64_t t) const { return writer(w).at(row + t, key_head()); }
  float reader_scale(int r) const { return r == 0 ? static_cast<float>(problem.scale) : 1.0f; }
  float* read(int r, int64_t t) const {
    return scratch.read + (r * tokens + t) * scratch.key_stride;
  }
  float* end(int w, int64_t t) const { return scratch.end + (w * tokens + t) * scratch.key_stride; }
  float* weights(int r, int64_t t) const {
    return scratch.weights + (r * tokens + t) * scratch.token_stride;
  }
  float* payload(int w, int64_t t) const {
    return scratch.payload + (w * tokens + t) * scratch.value_stride;
  }

  /// Everything that depends on readers, writers and decays alone; what q asks may be left out.
  template <bool kQuery = true>
  HWY_INLINE void prepare() const {
    constexpr int kFirst = kQuery ? 0 : 1;
    for (int64_t t = 0; t < tokens; ++t) {
      scratch.beta[t] = rows.beta && !kExclusive ? rows.beta.at(row + t, head)[0] : 1.0f;
    }
    for (int w = 0; kFirst < kReaders && w < kWriters; ++w) {
      transpose(tokens, key_dim(), writer_row(w, 0), writer(w).row_stride,
                scratch.columns + w * tokens, scratch.token_stride);
    }
    if constexpr (kChannels) {
      decay_channels<kFirst>();
      weigh_channels<kFirst>();
    } else {
      decay_tokens<kFirst>();
      weigh_tokens<kFirst>();
    }
  }

  /// Decays between all pairs of tokens, one number each. Sums of log decays start anew at every
  /// token: differences of long sums would lose a slow decay beside a fast one.
  template <int kFirst>
  HWY_INLINE void decay_tokens() const {
    const int64_t n = tokens;
    const int64_t stride = round_up_line(scratch.chunk);
    const F32 d;
    float* sum = scratch.sum;
    std::fill_n(sum, stride, 0.0f);
    float total = 0.0f;
    for (int64_t t = 0; t < n; ++t) {
      const float g = scalar_log_decay(problem, rows.g, row + t, head);
      total += g;
      scratch.from_start[t] = total;
      float* to = scratch.between + t * stride;
      for (int64_t j = 0; j < n; j += kLanes) {
        const VecF32 since = hn::Add(hn::LoadU(d, sum + j), hn::Set(d, g));
        hn::StoreU(since, d, sum + j);
        const auto earlier = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(t - j, 0)));
        hn::StoreU(hn::IfThenElseZero(earlier, exp_nonpositive(since)), d, to + j);
      }
      sum[t] = 0.0f;
      to[t] = 1.0f;
    }
    exp_row(scratch.from_start, scratch.from_start, n);
    std::copy_n(scratch.between + (n - 1) * stride, n, scratch.to_end);
    std::fill_n(scratch.end_decay, key_dim(), scratch.from_start[n - 1]);
    for (int r = kFirst; r < kReaders; ++r) {
      for (int64_t t = 0; t < n; ++t) {
        scale_row(reader_scale(r) * reader_decay(r, t), reader_row(r, t), read(r, t), key_dim());
      }
    }
    for (int w = 0; w < kWriters; ++w) {
      for (int64_t t = 0; t < n; ++t) {
        scale_row(scratch.to_end[t], writer_row(w, t), end(w, t), key_dim());
      }
    }
  }
  float reader_decay(int r, int64_t t) const {
    if (r == 0 || !kExclusive) return scratch.from_start[t];
    return t == 0 ? 1.0f : scratch.from_start[t - 1];
  }

  template <int kFirst>
  HWY_INLINE void weigh_tokens() const {
    const int64_t n = tokens;
    const int64_t stride = round_up_line(scratch.chunk);
    for (int r = kFirst; r < kReaders; ++r) {
      multiply({n,
                kWriters * n,
                key_dim(),
                {reader_row(r, 0), reader(r).row_stride, 1},
                scratch.columns,
                scratch.token_stride,
                weights(r, 0),
                scratch.token_stride});
      const F32 d;
      const VecF32 scale = hn::Set(d, reader_scale(r));
      for (int64_t t = 0; t < n; ++t) {
        const bool exclusive = r == 1 && kExclusive;
        if (exclusive && t == 0) {
          zero(weights(r, 0), kWriters * n);
          continue;
        }
        const float* decay = scratch.between + (exclusive ? t - 1 : t) * stride;
        for (int w = 0; w < kWriters; ++w) {
          float* to = weights(r, t) + w * n;
          map_row(n, to, decay, to,
                  [scale](VecF32 x, VecF32 y) HWY_ATTR { return hn::Mul(x, hn::Mul(y, scale)); });
          if (r == 1 && !kExclusive) to[t] = 0.0f;
        }
      }
    }
  }

  /// Decays by channel. Sums of log decays within the chunk keep what is carried to the next chunk
  /// exact; in between, products of the tokens' own decays do.
  template <int kFirst>
  HWY_INLINE void decay_channels() const {
    const int64_t n = tokens;
    const int64_t stride = scratch.key_stride;
    zero(scratch.sum, key_dim());
    for (int64_t t = 0; t < n; ++t) {
      const float* g = rows.g.at(row + t, head);
      float* from_start = scratch.from_start + t * stride;
      exp_row(g, scratch.between + t * stride, key_dim());
      add_row(g, scratch.sum, key_dim());
      exp_row(scratch.sum, from_start, key_dim());
      for (int r = kFirst; r < kReaders; ++r) {
        const VecF32 scale = hn::Set(F32(), reader_scale(r));
        if (r == 1 && kExclusive && t == 0) {
          copy(reader_row(r, 0), read(r, 0), key_dim());
          continue;
        }
        const float* decay = r == 1 && kExclusive ? from_start - stride : from_start;
        map_row(key_dim(), reader_row(r, t), decay, read(r, t),
                [scale](VecF32 x, VecF32 y) HWY_ATTR { return hn::Mul(hn::Mul(x, scale), y); });
      }
    }
    copy(scratch.from_start + (n - 1) * stride, scratch.end_decay, key_dim());
    std::fill_n(scratch.to_end + (n - 1) * stride, key_dim(), 1.0f);
    for (int64_t t = n - 1; t >= 0; --t) {
      float* to_end = scratch.to_end + t * stride;
      if (t < n - 1) {
        multiply_rows(to_end + stride, scratch.between + (t + 1) * stride, to_end, key_dim());
      }
      for (int w = 0; w < kWriters; ++w) {
        multiply_rows(to_end, writer_row(w, t), end(w, t), key_dim());
      }
    }
  }

  template <int kFirst>
  HWY_INLINE void weigh_channels() const {
    if (kFirst >= kReaders) return;
    zero(scratch.weights, kReaders * tokens * scratch.token_stride);
    for (int w = 0; w < kWriters; ++w) {
      const DecayedDots dots{.tokens = tokens,
                             .channels = key_dim(),
                             .decay = scratch.between,
                             .decay_stride = scratch.key_stride,
                             .first = reader_row(0, 0),
                             .first_stride = reader(0).row_stride,
                             .first_scale = static_cast<float>(problem.scale),
                             .second = kReaders > 1 ? reader_row(1, 0) : nullptr,
                             .second_stride = kReaders > 1 ? reader(1).row_stride : 0,
                             .columns = scratch.columns + w * tokens,
                             .columns_stride = scratch.token_stride,
                             .to = weights(0, 0) + w * tokens,
                             .to_second = weights(1, 0) + w * tokens,
                             .to_stride = scratch.token_stride};
      decayed_dots<kFirst == 0, kReaders == 2, kExclusive>(dots);
    }
  }

  /// The payload, given the state before the chunk.
  HWY_INLINE void solve(const float* state) const {
    const int64_t n = tokens;
    const int64_t V = value_dim();
    const int64_t last = kWriters - 1;
    if constexpr (kErase == Erase::kRankOne) {
      for (int64_t t = 0; t < n; ++t) copy(rows.v.at(row + t, head), payload(last, t), V);
      answer(1, state, payload(0, 0), scratch.value_stride);
      multiply({n,
                V,
                n,
                {weights(1, 0) + n, scratch.token_stride, 1},
                payload(1, 0),
                scratch.value_stride,
                payload(0, 0),
                scratch.value_stride,
                true});
      substitute(n, V, {weights(1, 0), scratch.token_stride, 1}, payload(0, 0),
                 scratch.value_stride);
      return;
    }
    if constexpr (kErase == Erase::kDelta) {
      answer(1, state, scratch.old, scratch.value_stride);
      for (int64_t t = 0; t < n; ++t) {
        float* old = scratch.old + t * scratch.value_stride;
        map_row(V, rows.v.at(row + t, head), old, old,
                [](VecF32 v, VecF32 x) HWY_ATTR { return hn::Sub(v, x); });
        map_row(n, weights(1, t), scratch.beta, scratch.solver + t * scratch.token_stride,
                [](VecF32 x, VecF32 b) HWY_ATTR { return hn::Neg(hn::Mul(x, b)); });
      }
      substitute(n, V, {scratch.solver, scratch.token_stride, 1}, scratch.old,
                 scratch.value_stride);
    }
    for (int64_t t = 0; t < n; ++t) {
      const float* from = kErase == Erase::kDelta ? scratch.old + t * scratch.value_stride
                                                  : rows.v.at(row + t, head);
      scale_row(scratch.beta[t], from, payload(0, t), V);
    }
  }

  /// to = X_r S.
  HWY_INLINE void answer(int r, const float* state, float* to, int64_t to_stride) const {
    multiply({tokens,
              value_dim(),
              key_dim(),
              {read(r, 0), scratch.key_stride, 1},
              state,
              value_dim(),
              to,
              to_stride});
  }

  HWY_INLINE void write_out(const float* state, const Heads<float>& out) const {
    float* to = out.at(row, head);
    answer(0, state, to, out.row_stride);
    multiply({tokens,
              value_dim(),
              kWriters * tokens,
              {weights(0, 0), scratch.token_stride, 1},
              payload(0, 0),
              scratch.value_stride,
              to,
              out.row_stride,
              true});
  }

  HWY_INLINE void advance(float* state) const {
    const int64_t V = value_dim();
    multiply({key_dim(),
              V,
              kWriters * tokens,
              {end(0, 0), 1, scratch.key_stride},
              payload(0, 0),
              scratch.value_stride,
              state,
              V,
              true,
              scratch.end_decay});
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_TRANSITION_CHUNK_INL_H_
