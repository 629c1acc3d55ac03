// Row-wise pieces of the forms of the state transition, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_TRANSITION_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_TRANSITION_ROWS_INL_H_
#undef TARN_KERNELS_CPU_STATE_TRANSITION_ROWS_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_TRANSITION_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"
#include "kernels/state_transition.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// to[i] = f(from vectors at i) for all i in [0, size): `f` gets one vector of each input.
template <class F>
HWY_INLINE void map_row(int64_t size, const float* x, float* to, const F& f) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, to + i);
  if (i < size) {
    const Tail tail(size - i);
    store_partial(f(load_partial(x + i, tail)), to + i, tail);
  }
}
template <class F>
HWY_INLINE void map_row(int64_t size, const float* x, const float* y, float* to, const F& f) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    hn::StoreU(f(hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, to + i);
  }
  if (i < size) {
    const Tail tail(size - i);
    store_partial(f(load_partial(x + i, tail), load_partial(y + i, tail)), to + i, tail);
  }
}

/// to = x∘y.
HWY_INLINE void multiply_rows(const float* x, const float* y, float* to, int64_t size) {
  map_row(size, x, y, to, [](VecF32 a, VecF32 b) HWY_ATTR { return hn::Mul(a, b); });
}

/// to += x∘y.
HWY_INLINE void add_products(const float* x, const float* y, float* to, int64_t size) {
  const F32 d;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), hn::LoadU(d, to + i)), d,
               to + i);
  }
  if (i < size) {
    const Tail tail(size - i);
    store_partial(hn::MulAdd(load_partial(x + i, tail), load_partial(y + i, tail),
                             load_partial(to + i, tail)),
                  to + i, tail);
  }
}

/// to = e^x for x ≤ 0.
HWY_INLINE void exp_row(const float* x, float* to, int64_t size) {
  map_row(size, x, to, [](VecF32 a) HWY_ATTR { return exp_nonpositive(a); });
}

/// log α of a head's token, the same for all channels. Not for kPerChannel.
HWY_INLINE float scalar_log_decay(const StateTransitionProblem& problem,
                                  const Heads<const float>& g, int64_t row, int64_t head) {
  switch (problem.decay) {
    case Decay::kPerHead: return static_cast<float>(problem.head_decay[head]);
    case Decay::kPerToken: return g.at(row, head)[0];
    default: return 0.0f;
  }
}

/// to[c] = e^g of a head's token, by key channel.
HWY_INLINE void decay_factors(const StateTransitionProblem& problem, const Heads<const float>& g,
                              int64_t row, int64_t head, float* to) {
  if (problem.decay == Decay::kPerChannel) {
    exp_row(g.at(row, head), to, problem.key_dim);
    return;
  }
  const float log_decay = scalar_log_decay(problem, g, row, head);
  const float alpha = hn::GetLane(exp_nonpositive(hn::Set(F32(), log_decay)));
  std::fill_n(to, problem.key_dim, alpha);
}

/// The rows of one head that the next chunk will read. They lie far apart in memory, which hardware
/// prefetchers do not follow.
struct TransitionRowsAhead {
  const StateTransitionProblem& problem;
  const StateTransitionRows<const float>& rows;
  int64_t first;  ///< the chunk's first row
  int64_t end;    ///< of the sequence
  int64_t head;

  /// Tokens [begin, end) of the chunk. (No closure: GCC takes a function that only prefetches for
  /// one without effect and drops the call.)
  HWY_INLINE void prefetch(int64_t from, int64_t to) const {
    const int64_t key_head = head / (problem.num_heads / problem.num_key_heads);
    const int64_t last = std::min(first + to, end);
    for (int64_t row = first + from; row < last; ++row) {
      request(rows.q, row, key_head, problem.key_dim);
      request(rows.k, row, key_head, problem.key_dim);
      request(rows.v, row, head, problem.value_dim);
      if (problem.decay == Decay::kPerChannel) request(rows.g, row, head, problem.key_dim);
      if (problem.erase == Erase::kRankOne) {
        request(rows.a, row, key_head, problem.key_dim);
        request(rows.b, row, key_head, problem.key_dim);
      }
    }
  }
  /// The same rows of one more tensor with the heads of v.
  HWY_INLINE void prefetch_more(const Heads<const float>& from, int64_t width,
                                int64_t tokens) const {
    const int64_t last = std::min(first + tokens, end);
    for (int64_t row = first; row < last; ++row) request(from, row, head, width);
  }
  HWY_INLINE void request(const Heads<const float>& from, int64_t row, int64_t of,
                          int64_t width) const {
    constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
    const float* at = from.at(row, of);
    for (int64_t c = 0; c < width; c += kLine) hwy::Prefetch(at + c);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_TRANSITION_ROWS_INL_H_
