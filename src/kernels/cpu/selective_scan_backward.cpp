#include <algorithm>
#include <cstdint>

#include "kernels/cpu/selective_scan.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/selective_scan_backward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/selective_scan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

struct SelectiveBackwardScratch {
  SelectiveBackwardScratch(const DiagonalScanProblem& problem, float* memory)
      : space(memory),
        block{problem.state_dim, space.take(problem.state_dim * kBlock), space.take(kBlock)} {
    const int64_t planes = problem.state_dim * kBlock;
    dh = space.take(planes);
    da = space.take(planes);
    dd = space.take(kBlock);
    h = space.take((kSelectiveChunk + 1) * planes);
    decay = space.take(kSelectiveChunk * planes);
    lanes = space.take(2 * problem.state_dim * kLanes);
    for (float** rows : {&x, &delta, &dy, &dx, &ddelta}) {
      *rows = space.take(kSelectiveChunk * kBlock);
    }
  }
  Scratch space;
  SelectiveBlock block;
  float *dh, *da, *dd;  ///< gradient that arrives from later tokens; sums over tokens
  float *h, *decay;     ///< what selective_scan_block<true> keeps
  float* lanes;         ///< [dB | dC][N][kLanes] of one token
  float *x, *delta, *dy, *dx, *ddelta;
};

int64_t selective_backward_scratch(const DiagonalScanProblem& problem) {
  return SelectiveBackwardScratch(problem, nullptr).space.used();
}

/// to[i] += the sum of lanes[i] [kLanes]; four at a time by exchanges within parts of four lanes.
HWY_INLINE void add_lane_sums(const float* HWY_RESTRICT lanes, int64_t count,
                              float* HWY_RESTRICT to) {
  const F32 d;
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Repartition<double, F32> pairs;
  const hn::CappedTag<float, 4> part;
  HWY_ALIGN float parts[kLanes];
  for (; i + 4 <= count; i += 4) {
    VecF32 sum[4];
    TARN_UNROLL
    for (int k = 0; k < 4; ++k) sum[k] = hn::Load(d, lanes + (i + k) * kLanes);
    // Lanes of a part: 0 of both operands, 1 of both; then all of each operand.
    const auto low = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, sum[0], sum[1]),
                                                hn::InterleaveUpper(d, sum[0], sum[1])));
    const auto high = hn::BitCast(pairs, hn::Add(hn::InterleaveLower(d, sum[2], sum[3]),
                                                 hn::InterleaveUpper(d, sum[2], sum[3])));
    hn::Store(hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
                      hn::BitCast(d, hn::InterleaveUpper(pairs, low, high))),
              d, parts);
    auto total = hn::LoadU(part, to + i);
    for (int64_t k = 0; k < kLanes; k += 4) total = hn::Add(total, hn::Load(part, parts + k));
    hn::StoreU(total, part, to + i);
  }
#endif
  for (; i < count; ++i) {
    to[i] += hn::GetLane(hn::SumOfLanes(d, hn::Load(d, lanes + i * kLanes)));
  }
}

/// Tokens of one chunk, last to first. With g = ∂L/∂h_t and w = g·exp(δA)·h_{t-1} = ∂L/∂(δA):
///   dC += dy·h_t   dB += g·δx   dA += w·δ   dδ = Σ_n w·A + x·Σ_n g·B   dx = δ·Σ_n g·B + d·dy
/// `sums` [tokens][dB | dC] is added to.
HWY_NOINLINE void selective_scan_block_gradient(const SelectiveBackwardScratch& at,
                                                const SelectiveScanInputs<float>& inputs,
                                                const SelectiveTokens& tokens,
                                                float* HWY_RESTRICT sums) {
  const F32 d;
  const int64_t N = at.block.state_dim;
  float* HWY_RESTRICT dh = at.dh;
  float* HWY_RESTRICT da = at.da;
  float* HWY_RESTRICT lanes = at.lanes;
  for (int64_t t = tokens.count - 1; t >= 0; --t) {
    const float* b = inputs.b.at(tokens.row + t);
    const float* c = inputs.c.at(tokens.row + t);
    const float* before = at.h + t * N * kBlock;
    const float* decay = at.decay + t * N * kBlock;
    VecF32 dy[kBlockVectors], delta[kBlockVectors], write[kBlockVectors];
    VecF32 through_a[kBlockVectors], through_b[kBlockVectors];
    TARN_UNROLL
    for (int v = 0; v < kBlockVectors; ++v) {
      const int64_t place = t * kBlock + v * kLanes;
      dy[v] = hn::Load(d, at.dy + place);
      delta[v] = hn::Load(d, at.delta + place);
      write[v] = hn::Mul(delta[v], hn::Load(d, at.x + place));
      through_a[v] = hn::Zero(d);
      through_b[v] = hn::Zero(d);
    }
    for (int64_t n = 0; n < N; ++n) {
      const VecF32 vb = hn::Set(d, b[n]);
      const VecF32 vc = hn::Set(d, c[n]);
      VecF32 db = hn::Zero(d), dc = hn::Zero(d);
      TARN_UNROLL
      for (int v = 0; v < kBlockVectors; ++v) {
        const int64_t place = n * kBlock + v * kLanes;
        const VecF32 g = hn::MulAdd(vc, dy[v], hn::Load(d, dh + place));
        dc = hn::MulAdd(dy[v], hn::Load(d, before + N * kBlock + place), dc);
        db = hn::MulAdd(g, write[v], db);
        through_b[v] = hn::MulAdd(g, vb, through_b[v]);
        const VecF32 earlier = hn::Mul(g, hn::Load(d, decay + place));
        hn::Store(earlier, d, dh + place);
        const VecF32 w = hn::Mul(earlier, hn::Load(d, before + place));
        through_a[v] = hn::MulAdd(w, hn::Load(d, at.block.a + place), through_a[v]);
        hn::Store(hn::MulAdd(w, delta[v], hn::Load(d, da + place)), d, da + place);
      }
      hn::Store(db, d, lanes + n * kLanes);
      hn::Store(dc, d, lanes + (N + n) * kLanes);
    }
    add_lane_sums(lanes, 2 * N, sums + t * 2 * N);
    TARN_UNROLL
    for (int v = 0; v < kBlockVectors; ++v) {
      const int64_t place = t * kBlock + v * kLanes;
      const VecF32 x = hn::Load(d, at.x + place);
      const VecF32 skip = hn::Mul(dy[v], hn::Load(d, at.block.d + v * kLanes));
      hn::Store(hn::MulAdd(through_b[v], delta[v], skip), d, at.dx + place);
      hn::Store(hn::MulAdd(through_b[v], x, hn::Mul(through_a[v], hn::Set(d, kLn2))), d,
                at.ddelta + place);
      hn::Store(hn::MulAdd(dy[v], x, hn::Load(d, at.dd + v * kLanes)), d, at.dd + v * kLanes);
    }
  }
}

/// One sequence of a block whose parameters are loaded. `chunk`: see the forward pass; `sums` are
/// the rows of this sequence.
void selective_backward_block(const SelectiveBackwardCall& call, const SelectiveBackwardScratch& at,
                              int64_t sequence, int64_t chunk, int64_t channel, int64_t count,
                              float* sums) {
  const DiagonalScanProblem& problem = call.problem;
  const int64_t N = problem.state_dim;
  const Borders borders(problem, N, kSelectiveChunk);
  const int64_t begin = problem.sequences.begin[sequence];
  const int64_t length = problem.sequences.length[sequence];
  const float* dfinal = call.dfinal != nullptr ? call.dfinal[sequence] : nullptr;
  load_planes(dfinal, N, channel, count, at.dh);
  for (int64_t i = (length + kSelectiveChunk - 1) / kSelectiveChunk - 1; i >= 0; --i) {
    const int64_t first = i * kSelectiveChunk;
    const int64_t row = begin + first;
    const int64_t size = std::min(kSelectiveChunk, length - first);
    const int64_t next = row - kSelectiveChunk;
    const int64_t more = std::min(kSelectiveChunk, first);
    const SelectiveTokens tokens{row,
                                 size,
                                 at.x,
                                 at.delta,
                                 {Upcoming::of(call.inputs.x, next, more, channel),
                                  Upcoming::of(call.inputs.delta, next, more, channel),
                                  Upcoming::of(call.dy, next, more, channel),
                                  Upcoming::of(call.gradients.dx, row, size, channel),
                                  Upcoming::of(call.gradients.ddelta, row, size, channel)}};
    copy_planes(call.borders + borders.offset(chunk + i, channel), Borders::kStride, N, at.h,
                kBlock);
    load_rows(call.inputs.x, row, tokens.count, channel, count, at.x);
    load_rows(call.inputs.delta, row, tokens.count, channel, count, at.delta);
    load_rows(call.dy, row, tokens.count, channel, count, at.dy);
    selective_scan_block<true>(at.block, call.inputs, tokens, at.h, at.decay, nullptr);
    selective_scan_block_gradient(at, call.inputs, tokens, sums + first * 2 * N);
    store_rows(at.dx, row, tokens.count, channel, count, call.gradients.dx);
    store_rows(at.ddelta, row, tokens.count, channel, count, call.gradients.ddelta);
  }
  if (call.gradients.dinitial != nullptr) {
    store_planes(at.dh, N, channel, count, call.gradients.dinitial[sequence]);
  }
}

/// Items are groups of channels; each takes all sequences in order.
void selective_backward_items(const SelectiveBackwardCall& call, int64_t begin, int64_t end,
                              float* memory) {
  const DiagonalScanProblem& problem = call.problem;
  const int64_t N = problem.state_dim;
  const SelectiveBackwardScratch at(problem, memory);
  const ChannelGroups groups(problem.num_channels);
  for (int64_t group = begin; group < end; ++group) {
    float* group_sums = call.sums + group * call.all_tokens * 2 * N;
    std::fill_n(group_sums, call.all_tokens * 2 * N, 0.0f);
    for (int64_t e = groups.begin(group); e < groups.end(group); e += kBlock) {
      const int64_t count = std::min(kBlock, groups.end(group) - e);
      at.block.load(call.inputs, e, count);
      std::fill_n(at.da, N * kBlock, 0.0f);
      std::fill_n(at.dd, kBlock, 0.0f);
      float* sums = group_sums;
      int64_t chunk = 0;
      for (int64_t i = 0; i < problem.sequences.count; ++i) {
        selective_backward_block(call, at, i, chunk, e, count, sums);
        chunk += (problem.sequences.length[i] + kSelectiveChunk - 1) / kSelectiveChunk;
        sums += problem.sequences.length[i] * 2 * N;
      }
      if (call.gradients.da != nullptr) add_planes(at.da, N, e, count, call.gradients.da);
      if (call.gradients.dd != nullptr) add_planes(at.dd, 1, e, count, call.gradients.dd);
    }
  }
}

/// dB and dC of all sequences: the groups' rows, added in order.
void add_group_sums(const SelectiveBackwardCall& call) {
  const int64_t N = call.problem.state_dim;
  const int64_t groups = ChannelGroups(call.problem.num_channels).count();
  const Sequences& sequences = call.problem.sequences;
  float* sums = call.sums;
  for (int64_t i = 0; i < sequences.count; ++i) {
    for (int64_t row = sequences.begin[i]; row < sequences.begin[i] + sequences.length[i]; ++row) {
      for (int64_t group = 1; group < groups; ++group) {
        const float* more = sums + group * call.all_tokens * 2 * N;
        for (int64_t n = 0; n < 2 * N; ++n) sums[n] += more[n];
      }
      std::copy_n(sums, N, call.gradients.db.at(row));
      std::copy_n(sums + N, N, call.gradients.dc.at(row));
      sums += 2 * N;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(selective_backward_items);
HWY_EXPORT(selective_backward_scratch);
HWY_EXPORT(add_group_sums);

}  // namespace

void selective_scan_backward(const DiagonalScanProblem& problem,
                             const SelectiveScanInputs<float>& inputs, const float* borders,
                             Rows<const float> dy, const float* const* dfinal,
                             const SelectiveScanGradients& gradients, Arena& arena) noexcept {
  ArenaScope scope(arena);
  const int64_t groups = ChannelGroups(problem.num_channels).count();
  int64_t tokens = 0;
  for (int64_t i = 0; i < problem.sequences.count; ++i) tokens += problem.sequences.length[i];
  SelectiveBackwardCall call{problem,
                             inputs,
                             borders,
                             dy,
                             dfinal,
                             gradients,
                             arena.alloc<float>(groups * tokens * 2 * problem.state_dim),
                             tokens,
                             HWY_DYNAMIC_DISPATCH(selective_backward_items)};
  call.scratch_size = HWY_DYNAMIC_DISPATCH(selective_backward_scratch)(problem);
  for_each_item(problem.pool, groups, call, arena);
  HWY_DYNAMIC_DISPATCH(add_group_sums)(call);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
