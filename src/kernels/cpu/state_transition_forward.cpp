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

/// One (sequence, head).
template <bool kChannels, Erase kErase>
void forward_head(const TransitionForwardCall& call, const TransitionForwardScratch& scratch,
                  int64_t sequence, int64_t head) {
  const StateTransitionProblem& problem = call.problem;
  const int64_t size = problem.key_dim * problem.value_dim;
  float* state = scratch.state;
  if (call.state != nullptr) {
    state = call.state[sequence] + head * size;
  } else {
    zero(state, size);
  }
  const int64_t first = problem.sequences.begin[sequence];
  const int64_t last = first + problem.sequences.length[sequence];
  for (int64_t row = first; row < last; row += call.chunk) {
    const TransitionChunk<kChannels, kErase> chunk{
        problem, call.rows, scratch.chunk, row, std::min(call.chunk, last - row), head};
    chunk.prepare();
    chunk.solve(state);
    chunk.write_out(state, call.out);
    chunk.advance(state);
  }
}

void transition_forward_items(const TransitionForwardCall& call, int64_t begin, int64_t end,
                              float* memory) {
  const TransitionForwardScratch scratch(call, memory);
  const int64_t heads = call.problem.num_heads;
  for (int64_t item = begin; item < end; ++item) {
    with_policies(call.problem, [&](auto channels, auto erase) {
      forward_head<channels(), erase()>(call, scratch, item / heads, item % heads);
    });
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
                             transition_chunk_tokens(problem),
                             HWY_DYNAMIC_DISPATCH(transition_forward_items)};
  call.scratch_size = TransitionForwardScratch(call, nullptr).space.used();
  run_tasks(problem.pool, problem.sequences.count * problem.num_heads, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
