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

/// Key heads of one sequence that take turns, with all their heads. States before segments are
/// computed in a first pass; then each segment, from the last, is passed again, which leaves its
/// chunks' matrices, and differentiated from its end.
template <bool kChannels, Erase kErase>
struct TransitionBackwardTurn {
  using Chunk = TransitionChunk<kChannels, kErase>;

  const TransitionBackwardCall& call;
  const TransitionBackwardScratch& scratch;
  int64_t sequence, first_head, heads;

  int64_t size() const { return call.problem.key_dim * call.problem.value_dim; }
  int64_t begin() const { return call.problem.sequences.begin[sequence]; }
  int64_t end() const { return begin() + call.problem.sequences.length[sequence]; }
  int64_t chunks() const { return (end() - begin() + call.chunk - 1) / call.chunk; }
  float* before(int64_t head, int64_t segment) const {
    return scratch.before + (head * call.segments + segment) * size();
  }
  float* dstate(int64_t head) const { return scratch.dstates + head * size(); }
  TransitionSlot slot(int64_t head, int64_t chunk) const {
    const int64_t i = head * call.segment + chunk % call.segment;
    return {call, scratch.slots + i * scratch.slot_size};
  }
  Chunk chunk(const TransitionSlot& slot, int64_t head, int64_t i) const {
    const int64_t row = begin() + i * call.chunk;
    return {call.problem,     call.rows, slot.chunk, row, std::min(call.chunk, end() - row),
            first_head + head};
  }
  /// What comes after `head` in chunk i: the next head, or the first one in chunk `next`.
  TransitionRowsAhead ahead(int64_t head, int64_t i, int64_t next) const {
    const bool same_rows = head + 1 < heads;
    return {call.problem, call.rows, begin() + (same_rows ? i : next) * call.chunk, end(),
            first_head + (same_rows ? head + 1 : 0)};
  }

  void load(const float* const* from, int64_t head, float* to) const {
    if (from != nullptr && from[sequence] != nullptr) {
      copy(from[sequence] + (first_head + head) * size(), to, size());
    } else {
      zero(to, size());
    }
  }

  void find_states() const {
    for (int64_t head = 0; head < heads; ++head) load(call.initial, head, before(head, 0));
    const int64_t passed = (chunks() - 1) / call.segment * call.segment;
    for (int64_t i = 0; i < passed; ++i) {
      const int64_t segment = i / call.segment;
      for (int64_t head = 0; head < heads; ++head) {
        float* state = before(head, segment + 1);
        if (i % call.segment == 0) copy(before(head, segment), state, size());
        const TransitionSlot work = slot(head, 0);
        const Chunk c = chunk(work, head, i);
        c.template prepare<false>();
        c.solve(state);
        ahead(head, i, i + 1).prefetch(0, call.chunk);
        c.advance(state);
      }
    }
  }

  void pass_segment(int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t head = 0; head < heads; ++head) {
        const TransitionSlot kept = slot(head, i);
        if (i == first) copy(before(head, i / call.segment), kept.state, size());
        const Chunk c = chunk(kept, head, i);
        c.prepare();
        c.solve(kept.state);
        ahead(head, i, i + 1).prefetch(0, call.chunk);
        if (i + 1 == last) continue;
        float* state = slot(head, i + 1).state;
        copy(kept.state, state, size());
        c.advance(state);
      }
    }
  }

  void differentiate_segment(int64_t first, int64_t last) const {
    const int64_t group = heads_per_key(call.problem);
    for (int64_t i = last - 1; i >= first; --i) {
      for (int64_t head = 0; head < heads; ++head) {
        const TransitionSlot kept = slot(head, i);
        const TransitionChunkGradient<kChannels, kErase> gradient{
            call, scratch, chunk(kept, head, i), kept.state, dstate(head)};
        gradient.run(head % group == 0, ahead(head, i, i > 0 ? i - 1 : chunks()));
      }
    }
  }

  void run() const {
    for (int64_t head = 0; head < heads; ++head) load(call.dfinal, head, dstate(head));
    find_states();
    for (int64_t last = chunks(); last > 0;) {
      const int64_t first = (last - 1) / call.segment * call.segment;
      pass_segment(first, last);
      differentiate_segment(first, last);
      last = first;
    }
    float* const* dinitial = call.gradients.dinitial;
    if (dinitial == nullptr || dinitial[sequence] == nullptr) return;
    copy(dstate(0), dinitial[sequence] + first_head * size(), heads * size());
  }
};

void transition_backward_items(const TransitionBackwardCall& call, int64_t begin, int64_t end,
                               float* memory) {
  const TransitionBackwardScratch scratch(call, memory);
  const int64_t key_heads = call.problem.num_key_heads;
  const int64_t group = heads_per_key(call.problem);
  while (begin < end) {
    const int64_t first = begin % key_heads;
    const int64_t count = std::min({call.turn, key_heads - first, end - begin});
    with_policies(call.problem, [&](auto channels, auto erase) {
      TransitionBackwardTurn<channels(), erase()>{call, scratch, begin / key_heads, first * group,
                                                  count * group}
          .run();
    });
    begin += count;
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
                              transition_chunk_tokens(problem, 16),
                              HWY_DYNAMIC_DISPATCH(transition_backward_items)};
  choose_segments(call);
  call.scratch_size = TransitionBackwardScratch(call, nullptr).space.used();
  run_tasks(problem.pool, problem.sequences.count * problem.num_key_heads, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
