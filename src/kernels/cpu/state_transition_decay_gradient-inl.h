// Gradient of decays by channel within a chunk, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_TRANSITION_DECAY_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_TRANSITION_DECAY_GRADIENT_INL_H_
#undef TARN_KERNELS_CPU_STATE_TRANSITION_DECAY_GRADIENT_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_TRANSITION_DECAY_GRADIENT_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// One chunk's rows, each [tokens, K] with `stride` unless said. Rows of the second reader or writer
/// follow those of the first.
struct DecayGradient {
  static constexpr int kMostTokens = 16;
  int64_t tokens, stride;
  const float* decay;  ///< of each token
  const float* from_start;
  const float* to_end;
  const float* read;  ///< readers, decayed since the chunk's start
  const float* end;   ///< writers, decayed to its end
  float* dread;       ///< of `read`; becomes the readers' whole gradient
  float* dend;        ///< of `end`; becomes the writers'
  float* dweights;    ///< [readers·n, writers·n]
  int64_t dweights_stride;
  float scale;          ///< of the first reader
  const float* dwhole;  ///< [K]: what all tokens' log decays get
  float* dlog_decay;    ///< or null: not wanted
  int64_t dlog_decay_stride;
  const float* readers[2] = {};
  int64_t reader_strides[2] = {};
  const float* writers[2] = {};
  int64_t writer_strides[2] = {};
};

/// One vector of channels from channel `at`.
template <int kReaders, int kWriters, bool kExclusive>
struct DecayGradientVector {
  const DecayGradient& p;
  int64_t at;
  Tail tail;
  VecF32 dlog_decay[DecayGradient::kMostTokens];

  HWY_INLINE VecF32 load(const float* rows, int64_t row) const {
    return load_partial(rows + row * p.stride + at, tail);
  }
  HWY_INLINE void store(VecF32 x, float* rows, int64_t row) const {
    store_partial(x, rows + row * p.stride + at, tail);
  }
  HWY_INLINE VecF32 reader(int r, int64_t t) const {
    const VecF32 x = load_partial(p.readers[r] + t * p.reader_strides[r] + at, tail);
    return r == 0 ? hn::Mul(x, hn::Set(F32(), p.scale)) : x;
  }
  HWY_INLINE VecF32 writer(int w, int64_t t) const {
    return load_partial(p.writers[w] + t * p.writer_strides[w] + at, tail);
  }
  HWY_INLINE VecF32 dweight(int r, int64_t t, int w, int64_t j) const {
    return hn::Set(F32(), p.dweights[(r * p.tokens + t) * p.dweights_stride + w * p.tokens + j]);
  }

  /// Decays from the chunk's start and to its end.
  HWY_INLINE void borders() {
    const F32 d;
    const int64_t n = p.tokens;
    VecF32 later = p.dwhole != nullptr ? load(p.dwhole, 0) : hn::Zero(d);
    VecF32 next_exclusive = hn::Zero(d);
    for (int64_t t = n - 1; t >= 0; --t) {
      const VecF32 since = load(p.from_start, t);
      later = hn::MulAdd(load(p.dread, t), load(p.read, t), hn::Add(later, next_exclusive));
      const VecF32 scaled = hn::Mul(since, hn::Set(d, p.scale));
      store(hn::Mul(load(p.dread, t), scaled), p.dread, t);
      if (kReaders > 1) {
        const VecF32 dread = load(p.dread, n + t);
        const VecF32 passed = hn::Mul(dread, load(p.read, n + t));
        if (kExclusive) {
          next_exclusive = passed;
          if (t > 0) store(hn::Mul(dread, load(p.from_start, t - 1)), p.dread, n + t);
        } else {
          later = hn::Add(later, passed);
          store(hn::Mul(dread, since), p.dread, n + t);
        }
      }
      dlog_decay[t] = later;
    }
    VecF32 earlier = hn::Zero(d);
    for (int64_t t = 0; t < n; ++t) {
      dlog_decay[t] = hn::Add(dlog_decay[t], earlier);
      for (int w = 0; w < kWriters; ++w) {
        const VecF32 dend = load(p.dend, w * n + t);
        earlier = hn::MulAdd(dend, load(p.end, w * n + t), earlier);
        store(hn::Mul(dend, load(p.to_end, t)), p.dend, w * n + t);
      }
    }
  }

  /// Reader `r` of token t gets from the writers before it, as decayed so far; so do the log decays
  /// in between: that of token s from all writers before s.
  HWY_INLINE void read_pairs(int r, int64_t t, int w, const VecF32* writers) {
    const bool exclusive = r == 1 && kExclusive;
    const VecF32 x = reader(r, t);
    VecF32 sum = hn::Zero(F32());
    for (int64_t j = 0; j < t; ++j) {
      sum = hn::MulAdd(dweight(r, t, w, j), writers[j], sum);
      if (!exclusive || j + 1 < t) dlog_decay[j + 1] = hn::MulAdd(x, sum, dlog_decay[j + 1]);
    }
    if (r == 0) sum = hn::MulAdd(dweight(r, t, w, t), writers[t], sum);
    if (r == 0) sum = hn::Mul(sum, hn::Set(F32(), p.scale));
    const int64_t row = r * p.tokens + t;
    store(hn::Add(load(p.dread, row), sum), p.dread, row);
  }

  HWY_INLINE void readers(int w) {
    VecF32 decayed[DecayGradient::kMostTokens];
    for (int64_t t = 0; t < p.tokens; ++t) {
      if (kReaders > 1 && kExclusive) read_pairs(1, t, w, decayed);
      const VecF32 alpha = load(p.decay, t);
      for (int64_t j = 0; j < t; ++j) decayed[j] = hn::Mul(decayed[j], alpha);
      decayed[t] = writer(w, t);
      read_pairs(0, t, w, decayed);
      if (kReaders > 1 && !kExclusive) read_pairs(1, t, w, decayed);
    }
  }

  /// Writers get from the readers after them, which decay from the last token to the first.
  HWY_INLINE void writers(int w) {
    VecF32 decayed[kReaders][DecayGradient::kMostTokens];
    for (int64_t j = p.tokens - 1; j >= 0; --j) {
      VecF32 sum = load(p.dend, w * p.tokens + j);
      if (j + 1 < p.tokens) {
        const VecF32 alpha = load(p.decay, j + 1);
        for (int r = 0; r < kReaders; ++r) {
          // The reader of the very next token is not decayed if it reads before its decay.
          const bool exclusive = r == 1 && kExclusive;
          for (int64_t t = j + 1; t < p.tokens; ++t) {
            if (!exclusive || t > j + 1) decayed[r][t] = hn::Mul(decayed[r][t], alpha);
            sum = hn::MulAdd(dweight(r, t, w, j), decayed[r][t], sum);
          }
        }
      }
      for (int r = 0; r < kReaders; ++r) decayed[r][j] = reader(r, j);
      sum = hn::MulAdd(dweight(0, j, w, j), decayed[0][j], sum);
      store(sum, p.dend, w * p.tokens + j);
    }
  }
};

template <int kReaders, int kWriters, bool kExclusive>
HWY_NOINLINE void differentiate_decays(const DecayGradient& p, int64_t at, int64_t channels) {
  DecayGradientVector<kReaders, kWriters, kExclusive> vector{p, at, Tail(channels), {}};
  vector.borders();
  for (int w = 0; w < kWriters; ++w) {
    vector.readers(w);
    vector.writers(w);
  }
  if (p.dlog_decay == nullptr) return;
  for (int64_t t = 0; t < p.tokens; ++t) {
    store_partial(vector.dlog_decay[t], p.dlog_decay + t * p.dlog_decay_stride + at, vector.tail);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_TRANSITION_DECAY_GRADIENT_INL_H_
