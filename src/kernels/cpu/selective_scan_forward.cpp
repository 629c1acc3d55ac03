#include <algorithm>
#include <cstdint>

#include "kernels/cpu/selective_scan.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selective_scan_forward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/selective_scan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

struct SelectiveForwardScratch {
  SelectiveForwardScratch(const DiagonalScanProblem& problem, float* memory)
      : space(memory),
        block{problem.state_dim, space.take(problem.state_dim * kBlock), space.take(kBlock)},
        h(space.take(problem.state_dim * kBlock)),
        x(space.take(kSelectiveChunk * kBlock)),
        delta(space.take(kSelectiveChunk * kBlock)),
        y(space.take(kSelectiveChunk * kBlock)) {}
  Scratch space;
  SelectiveBlock block;
  float *h, *x, *delta, *y;
};

int64_t selective_forward_scratch(const DiagonalScanProblem& problem) {
  return SelectiveForwardScratch(problem, nullptr).space.used();
}

/// One block of one sequence; `chunk` is the place of the sequence's first chunk among the borders.
void selective_forward_block(const SelectiveForwardCall& call, const SelectiveForwardScratch& at,
                             int64_t sequence, int64_t chunk, int64_t channel, int64_t count) {
  const DiagonalScanProblem& problem = call.problem;
  const int64_t N = problem.state_dim;
  const Borders borders(problem, N, kSelectiveChunk);
  float* state = call.state != nullptr ? call.state[sequence] : nullptr;
  at.block.load(call.inputs, channel, count);
  load_planes(state, N, channel, count, at.h);
  const int64_t begin = problem.sequences.begin[sequence];
  const int64_t end = begin + problem.sequences.length[sequence];
  for (int64_t row = begin; row < end; row += kSelectiveChunk, ++chunk) {
    if (call.borders != nullptr) {
      copy_planes(at.h, kBlock, N, call.borders + borders.offset(chunk, channel), Borders::kStride);
    }
    const int64_t next = row + kSelectiveChunk;
    const int64_t more = std::min(kSelectiveChunk, end - next);
    const int64_t size = std::min(kSelectiveChunk, end - row);
    const SelectiveTokens tokens{row,
                                 size,
                                 at.x,
                                 at.delta,
                                 {Upcoming::of(call.inputs.x, next, more, channel),
                                  Upcoming::of(call.inputs.delta, next, more, channel),
                                  Upcoming::of(call.y, row, size, channel)}};
    load_rows(call.inputs.x, row, tokens.count, channel, count, at.x);
    load_rows(call.inputs.delta, row, tokens.count, channel, count, at.delta);
    selective_scan_block<false>(at.block, call.inputs, tokens, at.h, nullptr, at.y);
    store_rows(at.y, row, tokens.count, channel, count, call.y);
  }
  if (state != nullptr) store_planes(at.h, N, channel, count, state);
}

void selective_forward_items(const SelectiveForwardCall& call, int64_t begin, int64_t end,
                             float* memory) {
  const SelectiveForwardScratch at(call.problem, memory);
  const Borders borders(call.problem, call.problem.state_dim, kSelectiveChunk);
  for_each_block(call.problem, borders, begin, end,
                 [&](int64_t sequence, int64_t chunk, int64_t channel, int64_t count) {
                   selective_forward_block(call, at, sequence, chunk, channel, count);
                 });
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(selective_forward_items);
HWY_EXPORT(selective_forward_scratch);

}  // namespace

int64_t selective_scan_borders(const DiagonalScanProblem& problem) {
  return Borders(problem, problem.state_dim, kSelectiveChunk).size();
}

void selective_scan_forward(const DiagonalScanProblem& problem,
                            const SelectiveScanInputs<float>& inputs, float* const* state,
                            Rows<float> y, float* borders, Arena& arena) noexcept {
  SelectiveForwardCall call{problem, inputs,  state,
                            y,       borders, HWY_DYNAMIC_DISPATCH(selective_forward_items)};
  call.scratch_size = HWY_DYNAMIC_DISPATCH(selective_forward_scratch)(problem);
  for_each_item(problem.pool, problem.sequences.count * ChannelGroups(problem.num_channels).count(),
                call, arena);
}

void selective_scan_step(const DiagonalScanProblem& problem,
                         const SelectiveScanInputs<float>& inputs, float* const* state,
                         Rows<float> y, Arena& arena) noexcept {
  ArenaScope scope(arena);
  const DiagonalScanProblem step =
      one_token_each(problem, arena.alloc<int64_t>(problem.sequences.count));
  selective_scan_forward(step, inputs, state, y, nullptr, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
