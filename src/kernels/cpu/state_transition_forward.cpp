#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_transition_calls.h"
#include "kernels/state_transition.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_transition_forward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/state_transition_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// Heads [first, first + count) of one sequence, in turn.
template <bool kChannels, Erase kErase>
void forward_heads(const TransitionForwardCall& call, const TransitionForwardScratch& scratch,
                   int64_t sequence, int64_t first, int64_t count) {
  const StateTransitionProblem& problem = call.problem;
  const int64_t size = problem.key_dim * problem.value_dim;
  float* states = scratch.states;
  if (call.state != nullptr) {
    states = call.state[sequence] + first * size;
  } else {
    zero(states, count * size);
  }
  const int64_t begin = problem.sequences.begin[sequence];
  const int64_t end = begin + problem.sequences.length[sequence];
  for (int64_t row = begin; row < end; row += call.chunk) {
    const int64_t tokens = std::min(call.chunk, end - row);
    for (int64_t i = 0; i < count; ++i) {
      const TransitionChunk<kChannels, kErase> chunk{problem, call.rows, scratch.chunk,
                                                     row,     tokens,    first + i};
      const bool same_rows = i + 1 < count;
      const TransitionRowsAhead ahead{problem, call.rows, same_rows ? row : row + call.chunk, end,
                                      first + (same_rows ? i + 1 : 0)};
      float* state = states + i * size;
      prefetch_for_writing(call.out, row, tokens, first + i, problem.value_dim);
      chunk.prepare();
      ahead.prefetch(0, call.chunk / 2);
      chunk.solve(state);
      ahead.prefetch(call.chunk / 2, call.chunk);
      chunk.write_out(state, call.out);
      chunk.advance(state);
    }
  }
}

void transition_forward_items(const TransitionForwardCall& call, int64_t begin, int64_t end,
                              float* memory) {
  const TransitionForwardScratch scratch(call, memory);
  const int64_t heads = call.problem.num_heads;
  while (begin < end) {
    const int64_t first = begin % heads;
    const int64_t count = std::min({call.turn, heads - first, end - begin});
    with_policies(call.problem, [&](auto channels, auto erase) {
      forward_heads<channels(), erase()>(call, scratch, begin / heads, first, count);
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

HWY_EXPORT(transition_forward_items);

}  // namespace

void transition_forward(const StateTransitionProblem& problem,
                        const StateTransitionRows<const float>& rows, float* const* state,
                        Heads<float> out, Arena& arena) noexcept {
  TransitionForwardCall call{problem,
                             rows,
                             state,
                             out,
                             transition_chunk_tokens(problem, 16),
                             transition_heads_in_turn(problem),
                             HWY_DYNAMIC_DISPATCH(transition_forward_items)};
  call.scratch_size = TransitionForwardScratch(call, nullptr).space.used();
  run_tasks(problem.pool, problem.sequences.count * problem.num_heads, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
