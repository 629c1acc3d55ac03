#include <algorithm>
#include <cstdint>

#include "kernels/cpu/diagonal_state_space.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/diagonal_state_space_backward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/diagonal_state_space-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

struct StateSpaceBackwardScratch {
  StateSpaceBackwardScratch(const DiagonalScanProblem& problem, float* memory) : space(memory) {
    planes = 2 * problem.state_dim;
    const int64_t size = planes * kBlock;
    block = {problem.state_dim, space.take(size), space.take(size), space.take(size),
             space.take(kBlock)};
    for (float** sums : {&border, &dh, &dtransition, &dinput, &dc}) *sums = space.take(size);
    dd = space.take(kBlock);
    h = space.take((kStateSpaceChunk + 1) * 4 * kLanes);
    for (float** rows : {&u, &dy, &du}) *rows = space.take(kStateSpaceChunk * kBlock);
  }
  Scratch space;
  int64_t planes;
  StateSpaceBlock block;
  float* border;                          ///< the state before the chunk
  float* dh;                              ///< gradient that arrives from later tokens
  float *dtransition, *dinput, *dc, *dd;  ///< sums over tokens
  float* h;                               ///< states of one element, two vectors
  float *u, *dy, *du;
};

int64_t state_space_backward_scratch(const DiagonalScanProblem& problem) {
  return StateSpaceBackwardScratch(problem, nullptr).space.used();
}

/// The sums of one vector of one state element over the tokens of a chunk.
struct StateSpaceSums {
  HWY_INLINE StateSpaceSums(const StateSpaceBackwardScratch& at, int64_t n, int v)
      : g(load_complex(at.dh, n, v)),
        dtransition(load_complex(at.dtransition, n, v)),
        dinput(load_complex(at.dinput, n, v)),
        dc(load_complex(at.dc, n, v)) {}
  HWY_INLINE void store(const StateSpaceBackwardScratch& at, int64_t n, int v) const {
    store_complex(g, at.dh, n, v);
    store_complex(dtransition, at.dtransition, n, v);
    store_complex(dinput, at.dinput, n, v);
    store_complex(dc, at.dc, n, v);
  }
  /// One token; `h` is its state, `before` the one before it. With g = (∂L/∂re h, ∂L/∂im h):
  ///   g += 2·conj(C)·dy   dC += 2·dy·conj(h)   dĀ += g·conj(before)   dB̄ += u·g
  ///   du += Re(conj(B̄)·g)   and g ← conj(Ā)·g.
  HWY_INLINE VecF32 pass(const StateSpaceElement& element, const ComplexVec& h,
                         const ComplexVec& before, VecF32 u, VecF32 dy, VecF32 du) {
    const F32 d;
    g.re = hn::MulAdd(element.c.re, dy, g.re);
    g.im = hn::NegMulAdd(element.c.im, dy, g.im);
    dc.re = hn::MulAdd(dy, h.re, dc.re);
    dc.im = hn::NegMulAdd(dy, h.im, dc.im);
    dtransition = multiply_conjugate_add(g, before, dtransition);
    dinput = scale_add(g, u, dinput);
    du = hn::MulAdd(element.input.im, g.im, hn::MulAdd(element.input.re, g.re, du));
    g = multiply_conjugate_add(g, element.transition, {hn::Zero(d), hn::Zero(d)});
    return du;
  }
  ComplexVec g, dtransition, dinput, dc;
};

/// The tokens of one chunk, state element by state element: states again from the border, then
/// last to first.
HWY_NOINLINE void state_space_block_gradient(const StateSpaceBackwardScratch& at, int64_t tokens) {
  const F32 d;
  const StateSpaceBlock& block = at.block;
  const float* HWY_RESTRICT u = at.u;
  const float* HWY_RESTRICT dy = at.dy;
  float* HWY_RESTRICT du = at.du;
  for (int v = 0; v < kBlockVectors; ++v) {
    const VecF32 skip = hn::Load(d, block.d + v * kLanes);
    VecF32 dd = hn::Load(d, at.dd + v * kLanes);
    for (int64_t t = tokens - 1; t >= 0; --t) {
      const int64_t place = t * kBlock + v * kLanes;
      dd = hn::MulAdd(hn::Load(d, dy + place), hn::Load(d, u + place), dd);
      hn::Store(hn::Mul(hn::Load(d, dy + place), skip), d, du + place);
    }
    hn::Store(dd, d, at.dd + v * kLanes);
  }
  const auto state = [&](int64_t t, int which) {
    const float* from = at.h + t * 4 * kLanes + which * 2 * kLanes;
    return ComplexVec{hn::Load(d, from), hn::Load(d, from + kLanes)};
  };
  const auto keep = [&](const ComplexVec& h, int64_t t, int which) {
    float* to = at.h + t * 4 * kLanes + which * 2 * kLanes;
    hn::Store(h.re, d, to);
    hn::Store(h.im, d, to + kLanes);
  };
  for (int v = 0; v < kBlockVectors; v += 2) {
    for (int64_t n = 0; n < block.state_dim; ++n) {
      const StateSpaceElement first(block, n, v), second(block, n, v + 1);
      ComplexVec h0 = load_complex(at.border, n, v), h1 = load_complex(at.border, n, v + 1);
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t place = t * kBlock + v * kLanes;
        keep(h0, t, 0);
        keep(h1, t, 1);
        h0 = first.next(h0, hn::Load(d, u + place));
        h1 = second.next(h1, hn::Load(d, u + place + kLanes));
      }
      StateSpaceSums sums0(at, n, v), sums1(at, n, v + 1);
      for (int64_t t = tokens - 1; t >= 0; --t) {
        const int64_t place = t * kBlock + v * kLanes;
        const ComplexVec before0 = state(t, 0), before1 = state(t, 1);
        const VecF32 du0 = sums0.pass(first, h0, before0, hn::Load(d, u + place),
                                      hn::Load(d, dy + place), hn::Load(d, du + place));
        hn::Store(du0, d, du + place);
        const VecF32 du1 =
            sums1.pass(second, h1, before1, hn::Load(d, u + place + kLanes),
                       hn::Load(d, dy + place + kLanes), hn::Load(d, du + place + kLanes));
        hn::Store(du1, d, du + place + kLanes);
        h0 = before0;
        h1 = before1;
      }
      sums0.store(at, n, v);
      sums1.store(at, n, v + 1);
    }
  }
}

/// One sequence of a block whose parameters are loaded.
void state_space_backward_block(const StateSpaceBackwardCall& call,
                                const StateSpaceBackwardScratch& at, int64_t sequence,
                                int64_t chunk, int64_t channel, int64_t count) {
  const DiagonalScanProblem& problem = call.problem;
  const Borders borders(problem, at.planes, kStateSpaceChunk);
  const int64_t begin = problem.sequences.begin[sequence];
  const int64_t length = problem.sequences.length[sequence];
  const float* dfinal = call.dfinal != nullptr ? call.dfinal[sequence] : nullptr;
  load_planes(dfinal, at.planes, channel, count, at.dh);
  for (int64_t i = (length + kStateSpaceChunk - 1) / kStateSpaceChunk - 1; i >= 0; --i) {
    const int64_t row = begin + i * kStateSpaceChunk;
    const int64_t tokens = std::min(kStateSpaceChunk, begin + length - row);
    copy_planes(call.borders + borders.offset(chunk + i, channel), Borders::kStride, at.planes,
                at.border, kBlock);
    load_rows(call.inputs.u, row, tokens, channel, count, at.u);
    load_rows(call.dy, row, tokens, channel, count, at.dy);
    state_space_block_gradient(at, tokens);
    store_rows(at.du, row, tokens, channel, count, call.gradients.du);
  }
  if (call.gradients.dinitial != nullptr) {
    store_planes(at.dh, at.planes, channel, count, call.gradients.dinitial[sequence]);
  }
}

/// Items are groups of channels; each takes all sequences in order.
void state_space_backward_items(const StateSpaceBackwardCall& call, int64_t begin, int64_t end,
                                float* memory) {
  const DiagonalScanProblem& problem = call.problem;
  const DiagonalStateSpaceGradients& gradients = call.gradients;
  const StateSpaceBackwardScratch at(problem, memory);
  const ChannelGroups groups(problem.num_channels);
  for (int64_t e = groups.begin(begin); e < groups.end(end - 1); e += kBlock) {
    const int64_t count = std::min(kBlock, problem.num_channels - e);
    at.block.load(call.inputs, e, count);
    for (float* sums : {at.dtransition, at.dinput, at.dc}) {
      std::fill_n(sums, at.planes * kBlock, 0.0f);
    }
    std::fill_n(at.dd, kBlock, 0.0f);
    int64_t chunk = 0;
    for (int64_t i = 0; i < problem.sequences.count; ++i) {
      state_space_backward_block(call, at, i, chunk, e, count);
      chunk += (problem.sequences.length[i] + kStateSpaceChunk - 1) / kStateSpaceChunk;
    }
    for (int64_t i = 0; i < at.planes * kBlock; ++i) at.dc[i] *= 2.0f;
    const auto add = [&](const float* sums, int64_t planes, float* to) {
      if (to != nullptr) add_planes(sums, planes, e, count, to);
    };
    add(at.dtransition, at.planes, gradients.dtransition);
    add(at.dinput, at.planes, gradients.dinput);
    add(at.dc, at.planes, gradients.dc);
    add(at.dd, 1, gradients.dd);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(state_space_backward_items);
HWY_EXPORT(state_space_backward_scratch);

}  // namespace

void diagonal_state_space_backward(const DiagonalScanProblem& problem,
                                   const DiagonalStateSpaceInputs& inputs, const float* borders,
                                   Rows<const float> dy, const float* const* dfinal,
                                   const DiagonalStateSpaceGradients& gradients,
                                   Arena& arena) noexcept {
  StateSpaceBackwardCall call{problem,
                              inputs,
                              borders,
                              dy,
                              dfinal,
                              gradients,
                              HWY_DYNAMIC_DISPATCH(state_space_backward_items)};
  call.scratch_size = HWY_DYNAMIC_DISPATCH(state_space_backward_scratch)(problem);
  for_each_item(problem.pool, ChannelGroups(problem.num_channels).count(), call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
