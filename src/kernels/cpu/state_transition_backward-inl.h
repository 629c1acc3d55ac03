// Gradient of one chunk of the state transition, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_TRANSITION_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_TRANSITION_BACKWARD_INL_H_
#undef TARN_KERNELS_CPU_STATE_TRANSITION_BACKWARD_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_TRANSITION_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/state_transition_calls.h"
#include "kernels/cpu/state_transition_chunk-inl.h"
#include "kernels/cpu/state_transition_decay_gradient-inl.h"
#include "kernels/cpu/state_transition_product-inl.h"
#include "kernels/cpu/state_transition_rows-inl.h"
#include "kernels/cpu/state_transition_tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

// In the terms of state_transition_chunk-inl.h, with G the gradients of what each reader got (dout
// for q) and dS that of the state after the chunk:
//   dP = A_qᵀ dout + Y dS, and through the triangular system G of the second reader
//   dX = G Sᵀ    dA = G Pᵀ    dY = P dSᵀ    dS ← E∘dS + Xᵀ G
// What is left are products of rows and decays. Every decay e^{g_i + … + g_j} passes its gradient
// times itself to each of its exponents; those are summed, never subtracted.

/// The same tokens as `c`.
template <bool kChannels, Erase kErase>
struct TransitionChunkGradient {
  using Chunk = TransitionChunk<kChannels, kErase>;
  static constexpr int kReaders = Chunk::kReaders;
  static constexpr int kWriters = Chunk::kWriters;

  const TransitionBackwardCall& call;
  const TransitionBackwardScratch& scratch;
  Chunk c;             ///< prepared and solved
  const float* state;  ///< before the chunk
  float* dstate;       ///< after it, then before it

  float* danswer(int r, int64_t t) const {
    return scratch.danswer + (r * c.tokens + t) * c.scratch.value_stride;
  }
  float* dpayload(int w, int64_t t) const {
    return scratch.dpayload + (w * c.tokens + t) * c.scratch.value_stride;
  }
  float* dread(int r, int64_t t) const {
    return scratch.dread + (r * c.tokens + t) * c.scratch.key_stride;
  }
  float* dend(int w, int64_t t) const {
    return scratch.dend + (w * c.tokens + t) * c.scratch.key_stride;
  }
  float* dweights(int r, int64_t t) const {
    return scratch.dweights + (r * c.tokens + t) * c.scratch.token_stride;
  }

  /// All gradients of the chunk. Meanwhile the rows that are read next are fetched.
  HWY_INLINE void run(bool first_of_key_head, const TransitionRowsAhead& ahead) const {
    prefetch_gradients();
    differentiate_payload();
    ahead.prefetch(0, call.chunk);
    differentiate_products();
    ahead.prefetch_more(call.dout, c.value_dim(), call.chunk);
    differentiate_state();
    if constexpr (kChannels) {
      differentiate_channels();
    } else {
      differentiate_tokens();
    }
    write(first_of_key_head);
  }
  HWY_INLINE void prefetch_gradients() const {
    const StateTransitionRows<float>& to = call.gradients.rows;
    prefetch_for_writing(to.v, c.row, c.tokens, c.head, c.value_dim());
    prefetch_for_writing(to.q, c.row, c.tokens, c.key_head(), c.key_dim());
    prefetch_for_writing(to.k, c.row, c.tokens, c.key_head(), c.key_dim());
    if (kChannels && to.g) prefetch_for_writing(to.g, c.row, c.tokens, c.head, c.key_dim());
    if (kErase != Erase::kRankOne) return;
    prefetch_for_writing(to.a, c.row, c.tokens, c.key_head(), c.key_dim());
    prefetch_for_writing(to.b, c.row, c.tokens, c.key_head(), c.key_dim());
  }

  /// dP, G, dv and dβ.
  HWY_INLINE void differentiate_payload() const {
    const int64_t n = c.tokens;
    const int64_t V = c.value_dim();
    const ChunkScratch& s = c.scratch;
    const Heads<float>& dv = call.gradients.rows.v;
    const Heads<float>& dbeta = call.gradients.rows.beta;
    for (int64_t t = 0; t < n; ++t) copy(call.dout.at(c.row + t, c.head), danswer(0, t), V);
    multiply({kWriters * n,
              V,
              n,
              {s.weights, 1, s.token_stride},
              scratch.danswer,
              s.value_stride,
              scratch.dpayload,
              s.value_stride});
    multiply({kWriters * n,
              V,
              c.key_dim(),
              {s.end, s.key_stride, 1},
              dstate,
              V,
              scratch.dpayload,
              s.value_stride,
              true});
    if constexpr (kErase == Erase::kRankOne) {
      substitute_back(s.weights + n * s.token_stride, scratch.dpayload);
      for (int64_t t = 0; t < n; ++t) copy(dpayload(0, t), danswer(1, t), V);
      multiply({n,
                V,
                n,
                {c.weights(1, 0) + n, 1, s.token_stride},
                danswer(1, 0),
                s.value_stride,
                dpayload(1, 0),
                s.value_stride,
                true});
      for (int64_t t = 0; t < n; ++t) copy(dpayload(1, t), dv.at(c.row + t, c.head), V);
      return;
    }
    if constexpr (kErase == Erase::kDelta) {
      for (int64_t t = 0; t < n; ++t) {
        scale_row(-s.beta[t], c.weights(1, t), s.solver + t * s.token_stride, n);
      }
      substitute_back(s.solver, scratch.dpayload);
    }
    for (int64_t t = 0; t < n; ++t) {
      const float* written =
          kErase == Erase::kDelta ? s.old + t * s.value_stride : c.rows.v.at(c.row + t, c.head);
      if (dbeta) dbeta.at(c.row + t, c.head)[0] = dot(dpayload(0, t), written, V);
      scale_row(s.beta[t], dpayload(0, t), dv.at(c.row + t, c.head), V);
      if constexpr (kErase == Erase::kDelta) {
        scale_row(-s.beta[t], dpayload(0, t), danswer(1, t), V);
      }
    }
  }
  /// x_t += Σ_{s>t} m[s, t] x_s, from the last token to the first.
  HWY_INLINE void substitute_back(const float* m, float* x) const {
    const ChunkScratch& s = c.scratch;
    const int64_t last = c.tokens - 1;
    substitute(c.tokens, c.value_dim(), {m + last * s.token_stride + last, -1, -s.token_stride},
               x + last * s.value_stride, -s.value_stride);
  }

  /// dX, dA and dY.
  HWY_INLINE void differentiate_products() const {
    const int64_t n = c.tokens;
    const int64_t K = c.key_dim();
    const int64_t V = c.value_dim();
    const ChunkScratch& s = c.scratch;
    transpose(K, V, state, V, scratch.state_columns, s.key_stride);
    transpose(K, V, dstate, V, scratch.dstate_columns, s.key_stride);
    transpose(kWriters * n, V, s.payload, s.value_stride, scratch.payload_columns, s.token_stride);
    const GemmLeft danswers{scratch.danswer, s.value_stride, 1};
    multiply({kReaders * n, K, V, danswers, scratch.state_columns, s.key_stride, scratch.dread,
              s.key_stride});
    multiply({kReaders * n, kWriters * n, V, danswers, scratch.payload_columns, s.token_stride,
              scratch.dweights, s.token_stride});
    multiply({kWriters * n,
              K,
              V,
              {s.payload, s.value_stride, 1},
              scratch.dstate_columns,
              s.key_stride,
              scratch.dend,
              s.key_stride});
  }

  HWY_INLINE void differentiate_state() const {
    const int64_t V = c.value_dim();
    const ChunkScratch& s = c.scratch;
    if (call.gradients.rows.g) {
      zero(scratch.dwhole, c.key_dim());
      for (int64_t i = 0; i < V; ++i) {
        add_products(scratch.state_columns + i * s.key_stride,
                     scratch.dstate_columns + i * s.key_stride, scratch.dwhole, c.key_dim());
      }
      multiply_rows(s.end_decay, scratch.dwhole, scratch.dwhole, c.key_dim());
    }
    multiply({c.key_dim(),
              V,
              kReaders * c.tokens,
              {s.read, 1, s.key_stride},
              scratch.danswer,
              s.value_stride,
              dstate,
              V,
              true,
              s.end_decay});
  }

  /// From dX, dA and dY to readers, writers and log decays that are one number per token.
  HWY_INLINE void differentiate_tokens() const {
    const int64_t n = c.tokens;
    const int64_t K = c.key_dim();
    const ChunkScratch& s = c.scratch;
    if (call.gradients.rows.g) sum_token_decays();
    for (int r = 0; r < kReaders; ++r) {
      for (int64_t t = 0; t < n; ++t) {
        scale_row(c.reader_scale(r) * c.reader_decay(r, t), dread(r, t), dread(r, t), K);
        decay_dweights(r, t);
      }
    }
    for (int w = 0; w < kWriters; ++w) {
      for (int64_t t = 0; t < n; ++t) scale_row(s.to_end[t], dend(w, t), dend(w, t), K);
      for (int r = 0; r < kReaders; ++r) {
        const float* between = dweights(r, 0) + w * n;
        multiply({n,
                  K,
                  n,
                  {between, s.token_stride, 1},
                  c.writer_row(w, 0),
                  c.writer(w).row_stride,
                  dread(r, 0),
                  s.key_stride,
                  true});
        multiply({n,
                  K,
                  n,
                  {between, 1, s.token_stride},
                  c.reader_row(r, 0),
                  c.reader(r).row_stride,
                  dend(w, 0),
                  s.key_stride,
                  true});
      }
    }
  }

  /// dA of one reader becomes the gradient of the product of plain rows.
  HWY_INLINE void decay_dweights(int r, int64_t t) const {
    const int64_t n = c.tokens;
    const bool exclusive = r == 1 && Chunk::kExclusive;
    if (exclusive && t == 0) {
      zero(dweights(r, 0), kWriters * n);
      return;
    }
    const float* decay =
        c.scratch.between + (exclusive ? t - 1 : t) * round_up_line(c.scratch.chunk);
    const VecF32 scale = hn::Set(F32(), c.reader_scale(r));
    for (int w = 0; w < kWriters; ++w) {
      float* to = dweights(r, t) + w * n;
      map_row(n, to, decay, to,
              [scale](VecF32 x, VecF32 y) HWY_ATTR { return hn::Mul(x, hn::Mul(y, scale)); });
      if (r == 1 && !Chunk::kExclusive) to[t] = 0.0f;
    }
  }

  HWY_INLINE void sum_token_decays() const {
    const int64_t n = c.tokens;
    const int64_t K = c.key_dim();
    float* dg = scratch.dlog_decay;
    sum_pairs(dg);
    float whole = 0.0f;
    for (int64_t i = 0; i < K; ++i) whole += scratch.dwhole[i];
    float later = whole;
    for (int64_t t = n - 1; t >= 0; --t) {
      if (kReaders > 1 && !Chunk::kExclusive) later += dot(dread(1, t), c.read(1, t), K);
      if (kReaders > 1 && Chunk::kExclusive && t + 1 < n) {
        later += dot(dread(1, t + 1), c.read(1, t + 1), K);
      }
      later += dot(dread(0, t), c.read(0, t), K);
      dg[t] += later;
    }
    float earlier = 0.0f;
    for (int64_t t = 0; t < n; ++t) {
      dg[t] += earlier;
      for (int w = 0; w < kWriters; ++w) earlier += dot(dend(w, t), c.end(w, t), K);
      call.gradients.rows.g.at(c.row + t, c.head)[0] = dg[t];
    }
  }

  /// dg[s] = Σ of dA∘A over readers t and writers j with j < s ≤ t (s < t if exclusive).
  HWY_INLINE void sum_pairs(float* dg) const {
    const F32 d;
    const int64_t n = c.tokens;
    std::fill_n(dg, n, 0.0f);
    for (int w = 0; w < kWriters; ++w) {
      for (int64_t j = 0; j < n; j += kLanes) {
        VecF32 later = hn::Zero(d);
        const auto add = [&](int r, int64_t t) HWY_ATTR {
          const int64_t at = w * n + j;
          // What is above the diagonal is masked by then.
          const auto writers = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(t - j, 0)));
          later = hn::Add(later,
                          hn::IfThenElseZero(writers, hn::Mul(hn::LoadU(d, dweights(r, t) + at),
                                                              hn::LoadU(d, c.weights(r, t) + at))));
        };
        for (int64_t t = n - 1; t > j; --t) {
          add(0, t);
          if (kReaders > 1 && !Chunk::kExclusive) add(1, t);
          if (kReaders > 1 && Chunk::kExclusive && t + 1 < n) add(1, t + 1);
          const auto earlier = hn::FirstN(d, static_cast<size_t>(t - j));
          dg[t] += hn::GetLane(hn::SumOfLanes(d, hn::IfThenElseZero(earlier, later)));
        }
      }
    }
  }

  /// The same for decays by channel.
  HWY_INLINE void differentiate_channels() const {
    const int64_t n = c.tokens;
    const ChunkScratch& s = c.scratch;
    const bool wanted = static_cast<bool>(call.gradients.rows.g);
    DecayGradient p{.tokens = n,
                    .stride = s.key_stride,
                    .decay = s.between,
                    .from_start = s.from_start,
                    .to_end = s.to_end,
                    .read = s.read,
                    .end = s.end,
                    .dread = scratch.dread,
                    .dend = scratch.dend,
                    .dweights = scratch.dweights,
                    .dweights_stride = s.token_stride,
                    .scale = static_cast<float>(c.problem.scale),
                    .dwhole = wanted ? scratch.dwhole : nullptr,
                    .dlog_decay = wanted ? call.gradients.rows.g.at(c.row, c.head) : nullptr,
                    .dlog_decay_stride = call.gradients.rows.g.row_stride};
    for (int r = 0; r < kReaders; ++r) {
      p.readers[r] = c.reader_row(r, 0);
      p.reader_strides[r] = c.reader(r).row_stride;
    }
    for (int w = 0; w < kWriters; ++w) {
      p.writers[w] = c.writer_row(w, 0);
      p.writer_strides[w] = c.writer(w).row_stride;
    }
    for (int64_t at = 0; at < c.key_dim(); at += kLanes) {
      differentiate_decays<kReaders, kWriters, Chunk::kExclusive>(
          p, at, std::min(kLanes, c.key_dim() - at));
    }
  }

  HWY_INLINE void write(bool first) const {
    const StateTransitionRows<float>& to = call.gradients.rows;
    write_rows(first, scratch.dread, to.q);
    const float* writers = scratch.dend;
    if constexpr (kErase == Erase::kRankOne) {
      write_rows(first, dread(1, 0), to.b);
      write_rows(first, writers, to.a);
      writers = dend(1, 0);
    }
    write_rows(first, writers, to.k);
    if constexpr (kErase == Erase::kDelta) write_rows(false, dread(1, 0), to.k);
  }
  /// Rows of a key head: the sum over its heads, of which this is the first, or is added.
  HWY_INLINE void write_rows(bool first, const float* from, const Heads<float>& to) const {
    for (int64_t t = 0; t < c.tokens; ++t) {
      float* row = to.at(c.row + t, c.key_head());
      if (first) {
        copy(from + t * c.scratch.key_stride, row, c.key_dim());
      } else {
        add_row(from + t * c.scratch.key_stride, row, c.key_dim());
      }
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_TRANSITION_BACKWARD_INL_H_
