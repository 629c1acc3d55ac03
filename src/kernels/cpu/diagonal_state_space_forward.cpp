#include <algorithm>
#include <cstdint>

#include "kernels/cpu/diagonal_state_space.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/diagonal_state_space_forward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/diagonal_state_space-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

struct StateSpaceForwardScratch {
  StateSpaceForwardScratch(const DiagonalScanProblem& problem, float* memory) : space(memory) {
    const int64_t planes = 2 * problem.state_dim * kBlock;
    block = {problem.state_dim, space.take(planes), space.take(planes), space.take(planes),
             space.take(kBlock)};
    h = space.take(planes);
    u = space.take(kStateSpaceChunk * kBlock);
    y = space.take(kStateSpaceChunk * kBlock);
  }
  Scratch space;
  StateSpaceBlock block;
  float *h, *u, *y;
};

int64_t state_space_forward_scratch(const DiagonalScanProblem& problem) {
  return StateSpaceForwardScratch(problem, nullptr).space.used();
}

/// Passes tokens u [tokens][kBlock] through the state, element by element with the coefficients in
/// registers, two vectors at a time: each is a chain of multiply-adds that waits for itself.
HWY_NOINLINE void state_space_block(const StateSpaceForwardScratch& at, int64_t tokens) {
  const F32 d;
  const StateSpaceBlock& block = at.block;
  const float* HWY_RESTRICT u = at.u;
  float* HWY_RESTRICT y = at.y;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int v = 0; v < kBlockVectors; ++v) {
      const int64_t place = t * kBlock + v * kLanes;
      hn::Store(hn::Mul(hn::Load(d, u + place), hn::Load(d, block.d + v * kLanes)), d, y + place);
    }
  }
  for (int v = 0; v < kBlockVectors; v += 2) {
    for (int64_t n = 0; n < block.state_dim; ++n) {
      const StateSpaceElement first(block, n, v), second(block, n, v + 1);
      ComplexVec h0 = load_complex(at.h, n, v), h1 = load_complex(at.h, n, v + 1);
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t place = t * kBlock + v * kLanes;
        h0 = first.next(h0, hn::Load(d, u + place));
        h1 = second.next(h1, hn::Load(d, u + place + kLanes));
        VecF32 y0 = hn::Load(d, y + place), y1 = hn::Load(d, y + place + kLanes);
        y0 = hn::NegMulAdd(first.c.im, h0.im, hn::MulAdd(first.c.re, h0.re, y0));
        y1 = hn::NegMulAdd(second.c.im, h1.im, hn::MulAdd(second.c.re, h1.re, y1));
        hn::Store(y0, d, y + place);
        hn::Store(y1, d, y + place + kLanes);
      }
      store_complex(h0, at.h, n, v);
      store_complex(h1, at.h, n, v + 1);
    }
  }
}

/// As selective_forward_block.
void state_space_forward_block(const StateSpaceForwardCall& call,
                               const StateSpaceForwardScratch& at, int64_t sequence, int64_t chunk,
                               int64_t channel, int64_t count) {
  const DiagonalScanProblem& problem = call.problem;
  const int64_t planes = 2 * problem.state_dim;
  const Borders borders(problem, planes, kStateSpaceChunk);
  float* state = call.state != nullptr ? call.state[sequence] : nullptr;
  at.block.load(call.inputs, channel, count);
  load_planes(state, planes, channel, count, at.h);
  const int64_t begin = problem.sequences.begin[sequence];
  const int64_t end = begin + problem.sequences.length[sequence];
  for (int64_t row = begin; row < end; row += kStateSpaceChunk, ++chunk) {
    if (call.borders != nullptr) {
      copy_planes(at.h, kBlock, planes, call.borders + borders.offset(chunk, channel),
                  Borders::kStride);
    }
    const int64_t tokens = std::min(kStateSpaceChunk, end - row);
    load_rows(call.inputs.u, row, tokens, channel, count, at.u);
    state_space_block(at, tokens);
    store_rows(at.y, row, tokens, channel, count, call.y);
  }
  if (state != nullptr) store_planes(at.h, planes, channel, count, state);
}

void state_space_forward_items(const StateSpaceForwardCall& call, int64_t begin, int64_t end,
                               float* memory) {
  const StateSpaceForwardScratch at(call.problem, memory);
  const Borders borders(call.problem, 2 * call.problem.state_dim, kStateSpaceChunk);
  for_each_block(call.problem, borders, begin, end,
                 [&](int64_t sequence, int64_t chunk, int64_t channel, int64_t count) {
                   state_space_forward_block(call, at, sequence, chunk, channel, count);
                 });
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(state_space_forward_items);
HWY_EXPORT(state_space_forward_scratch);

}  // namespace

int64_t diagonal_state_space_borders(const DiagonalScanProblem& problem) {
  return Borders(problem, 2 * problem.state_dim, kStateSpaceChunk).size();
}

void diagonal_state_space_forward(const DiagonalScanProblem& problem,
                                  const DiagonalStateSpaceInputs& inputs, float* const* state,
                                  Rows<float> y, float* borders, Arena& arena) noexcept {
  StateSpaceForwardCall call{problem, inputs,  state,
                             y,       borders, HWY_DYNAMIC_DISPATCH(state_space_forward_items)};
  call.scratch_size = HWY_DYNAMIC_DISPATCH(state_space_forward_scratch)(problem);
  for_each_item(problem.pool, problem.sequences.count * ChannelGroups(problem.num_channels).count(),
                call, arena);
}

void diagonal_state_space_step(const DiagonalScanProblem& problem,
                               const DiagonalStateSpaceInputs& inputs, float* const* state,
                               Rows<float> y, Arena& arena) noexcept {
  ArenaScope scope(arena);
  const DiagonalScanProblem step =
      one_token_each(problem, arena.alloc<int64_t>(problem.sequences.count));
  diagonal_state_space_forward(step, inputs, state, y, nullptr, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
