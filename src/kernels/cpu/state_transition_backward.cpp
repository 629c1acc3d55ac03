#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_transition_calls.h"
#include "kernels/state_transition.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_transition_backward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/state_transition_backward-inl.h"
#include "kernels/cpu/state_transition_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// One (sequence, head). States before chunks are computed again, a segment at a time.
template <bool kChannels, Erase kErase>
struct TransitionBackwardHead {
  const TransitionBackwardCall& call;
  const TransitionBackwardScratch& scratch;
  int64_t sequence, head;

  int64_t size() const { return call.problem.key_dim * call.problem.value_dim; }
  int64_t chunks() const {
    return (call.problem.sequences.length[sequence] + call.chunk - 1) / call.chunk;
  }
  TransitionChunk<kChannels, kErase> chunk(int64_t i) const {
    const int64_t first = call.problem.sequences.begin[sequence];
    const int64_t last = first + call.problem.sequences.length[sequence];
    const int64_t row = first + i * call.chunk;
    return {call.problem, call.rows, scratch.chunk, row, std::min(call.chunk, last - row), head};
  }
  void load(const float* const* from, float* to) const {
    if (from != nullptr && from[sequence] != nullptr) {
      copy(from[sequence] + head * size(), to, size());
    } else {
      zero(to, size());
    }
  }
  void advance(int64_t i, float* state) const {
    const TransitionChunk<kChannels, kErase> c = chunk(i);
    c.prepare();
    c.solve(state);
    c.advance(state);
  }

  void run(bool first_of_key_head) const {
    load(call.dfinal, scratch.dstate);
    load(call.initial, scratch.before);
    const int64_t segments = (chunks() + call.segment - 1) / call.segment;
    for (int64_t i = 1; i < segments; ++i) {
      float* state = scratch.before + i * size();
      copy(state - size(), state, size());
      for (int64_t j = 0; j < call.segment; ++j) advance((i - 1) * call.segment + j, state);
    }
    for (int64_t i = segments - 1; i >= 0; --i) {
      const int64_t first = i * call.segment;
      const int64_t count = std::min(call.segment, chunks() - first);
      copy(scratch.before + i * size(), scratch.within, size());
      for (int64_t j = 1; j < count; ++j) {
        float* state = scratch.within + j * size();
        copy(state - size(), state, size());
        advance(first + j - 1, state);
      }
      for (int64_t j = count - 1; j >= 0; --j) {
        TransitionChunkGradient<kChannels, kErase>{call, scratch, chunk(first + j)}.run(
            scratch.within + j * size(), first_of_key_head);
      }
    }
    float* const* dinitial = call.gradients.dinitial;
    if (dinitial != nullptr && dinitial[sequence] != nullptr) {
      copy(scratch.dstate, dinitial[sequence] + head * size(), size());
    }
  }
};

void transition_backward_items(const TransitionBackwardCall& call, int64_t begin, int64_t end,
                               float* memory) {
  const TransitionBackwardScratch scratch(call, memory);
  const int64_t key_heads = call.problem.num_key_heads;
  const int64_t group = heads_per_key(call.problem);
  for (int64_t item = begin; item < end; ++item) {
    for (int64_t i = 0; i < group; ++i) {
      with_policies(call.problem, [&](auto channels, auto erase) {
        TransitionBackwardHead<channels(), erase()>{call, scratch, item / key_heads,
                                                    item % key_heads * group + i}
            .run(i == 0);
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(transition_backward_items);

}  // namespace

void transition_backward(const StateTransitionProblem& problem,
                         const StateTransitionRows<const float>& rows, const float* const* initial,
                         Heads<const float> dout, const float* const* dfinal,
                         const StateTransitionGradients& gradients, Arena& arena) noexcept {
  TransitionBackwardCall call{problem,
                              rows,
                              initial,
                              dout,
                              dfinal,
                              gradients,
                              transition_chunk_tokens(problem),
                              0,
                              0,
                              HWY_DYNAMIC_DISPATCH(transition_backward_items)};
  choose_segments(call);
  call.scratch_size = TransitionBackwardScratch(call, nullptr).space.used();
  run_tasks(problem.pool, problem.sequences.count * problem.num_key_heads, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
