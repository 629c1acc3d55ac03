#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_calls.h"
#include "kernels/state_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_update_full.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/small_gemm-inl.h"
#include "kernels/cpu/state_update_backward-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"

// The forms without causality: sums over a whole sequence, then every token for itself.

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// Answers the queries of `tokens` rows from the totals s and z.
HWY_INLINE void full_forward_rows(const ForwardCall& call, const ForwardScratch& scratch,
                                  int64_t head, int64_t row, float* phi_q, int64_t tokens) {
  const StateUpdateProblem& problem = call.problem;
  const FeatureMap& map = problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = problem.value_dim;
  map.forward(map, tokens, call.q.at(row, head), call.q.row_stride, phi_q);
  small_gemm(tokens, V, F, {phi_q, F, 1}, scratch.s, V, call.out.at(row, head), call.out.row_stride,
             false);
  if (!problem.normalise) return;
  for (int64_t t = 0; t < tokens; ++t) {
    const float denominator = dot(phi_q + t * F, scratch.z, F) + problem.eps;
    if (call.denominator != nullptr) {
      call.denominator[(row + t) * problem.num_heads + head] = denominator;
    }
    float* out = call.out.at(row + t, head);
    scale_row(1.0f / denominator, out, out, V);
  }
}

/// A head whose queries all read the totals over its sequence. `split` is Alone or Together.
template <class Split>
HWY_INLINE void full_forward_head(const ForwardCall& call, const ForwardScratch& scratch,
                                  int64_t item, int64_t most_tokens, const Split& split) {
  const StateUpdateProblem& problem = call.problem;
  const FeatureMap& map = problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = problem.value_dim;
  const int64_t head = item % problem.num_heads;
  const int64_t first = problem.sequences.begin[item / problem.num_heads];
  const int64_t last = first + problem.sequences.length[item / problem.num_heads];
  zero(scratch.s, F * V);
  zero(scratch.z, F);
  for (int64_t row = first; row < last; row += most_tokens) {
    const int64_t tokens = std::min(most_tokens, last - row);
    split(tokens, [&](int64_t begin, int64_t end, int) {
      map.forward(map, end - begin, call.k.at(row + begin, head), call.k.row_stride,
                  scratch.phi_k + begin * F);
    });
    split_columns(V, split, [&](int64_t begin, int64_t end) {
      small_gemm(F, end - begin, tokens, {scratch.phi_k, 1, F}, call.v.at(row, head) + begin,
                 call.v.row_stride, scratch.s + begin, V, true);
    });
    for (int64_t t = 0; t < tokens; ++t) add_row(scratch.phi_k + t * F, scratch.z, F);
  }
  for (int64_t row = first; row < last; row += most_tokens) {
    split(std::min(most_tokens, last - row), [&](int64_t begin, int64_t end, int) {
      full_forward_rows(call, scratch, head, row + begin, scratch.phi_q + begin * F, end - begin);
    });
  }
}

void full_forward_items(const ForwardCall& call, int64_t begin, int64_t end, float* memory) {
  const ForwardScratch scratch = ForwardScratch::alone(call, memory);
  for (int64_t item = begin; item < end; ++item) {
    full_forward_head(call, scratch, item, call.chunk, Alone());
  }
}

void full_forward_shared(const ForwardCall& call, int64_t item, float* memory) {
  full_forward_head(call, ForwardScratch::shared(call, memory), item, kSharedChunk,
                    Together{call.problem.pool});
}

/// The totals of a chunk: columns [begin, end) of those that are F wide.
HWY_INLINE void add_feature_totals(const BackwardHead& h, int64_t tokens, int64_t begin,
                                   int64_t end) {
  const BackwardScratch& scratch = h.scratch;
  const int64_t F = h.features();
  small_gemm(h.extended(), end - begin, tokens, {scratch.value, 1, h.stride()},
             scratch.phi_k + begin, F, h.prefix() + begin, F, true);
  small_gemm(h.extended(), end - begin, tokens, {scratch.dnum, 1, h.stride()},
             scratch.phi_q + begin, F, h.suffix() + begin, F, true);
}

/// The same of those that are V wide.
HWY_INLINE void add_value_totals(const BackwardHead& h, int64_t tokens, int64_t begin,
                                 int64_t end) {
  small_gemm(h.features(), end - begin, tokens, {h.scratch.phi_q, 1, h.features()},
             h.scratch.dnum + begin, h.stride(), h.r() + begin, h.value_dim(), true);
}

/// The gradients of tokens [begin, end) of the chunk that starts at `row`, from the totals.
HWY_INLINE void full_backward_rows(const BackwardHead& h, int64_t row, int64_t begin, int64_t end) {
  const BackwardScratch& scratch = h.scratch;
  const Heads<float>& dv = h.call.gradients.dv;
  const int64_t F = h.features();
  const int64_t V = h.value_dim();
  const int64_t E = h.extended();
  const int64_t stride = h.stride();
  const int64_t rows = end - begin;
  float* dphi = scratch.dphi + begin * F;
  h.prepare(row, begin, end);
  small_gemm(rows, V, F, {scratch.phi_k + begin * F, F, 1}, h.r(), V, dv.at(row + begin, h.head),
             dv.row_stride, false);
  small_gemm(rows, F, E, {scratch.dnum + begin * stride, stride, 1}, h.prefix(), F, dphi, F, false);
  h.write_dq(row, begin, end);
  small_gemm(rows, F, E, {scratch.value + begin * stride, stride, 1}, h.suffix(), F, dphi, F,
             false);
  h.write_dk(row, begin, end);
}

/// `split` is Alone or Together.
template <class Split>
HWY_INLINE void full_backward_head(const BackwardHead& h, const Split& split) {
  h.load_state({}, h.prefix(), nullptr);
  h.load_state({}, h.suffix(), h.r());
  for (int64_t chunk = 0; chunk < h.num_chunks(); ++chunk) {
    const int64_t row = h.chunk_row(chunk);
    const int64_t tokens = h.chunk_length(chunk);
    split(tokens, [&](int64_t begin, int64_t end, int) { h.prepare(row, begin, end); });
    split_columns(h.features(), split,
                  [&](int64_t begin, int64_t end) { add_feature_totals(h, tokens, begin, end); });
    split_columns(h.value_dim(), split,
                  [&](int64_t begin, int64_t end) { add_value_totals(h, tokens, begin, end); });
  }
  for (int64_t chunk = 0; chunk < h.num_chunks(); ++chunk) {
    split(h.chunk_length(chunk), [&](int64_t begin, int64_t end, int) {
      full_backward_rows(h, h.chunk_row(chunk), begin, end);
    });
  }
}

void full_backward_items(const BackwardCall& call, int64_t begin, int64_t end, float* memory) {
  const BackwardScratch scratch = BackwardScratch::alone(call, memory);
  const int64_t heads = call.problem.num_heads;
  for (int64_t item = begin; item < end; ++item) {
    full_backward_head(BackwardHead{call, scratch, item / heads, item % heads, 0}, Alone());
  }
}

void full_backward_shared(const BackwardCall& call, int64_t item, float* memory) {
  const BackwardScratch scratch = BackwardScratch::shared(call, memory);
  const int64_t heads = call.problem.num_heads;
  full_backward_head(BackwardHead{call, scratch, item / heads, item % heads, 0},
                     Together{call.problem.pool});
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(full_forward_items);
HWY_EXPORT(full_forward_shared);
HWY_EXPORT(full_backward_items);
HWY_EXPORT(full_backward_shared);

}  // namespace

void full_forward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                  Heads<const float> v, Heads<float> out, float* denominator,
                  Arena& arena) noexcept {
  ForwardCall call{problem,
                   q,
                   k,
                   v,
                   {},
                   out,
                   denominator,
                   full_chunk_tokens(problem),
                   1,
                   false,
                   HWY_DYNAMIC_DISPATCH(full_forward_items),
                   HWY_DYNAMIC_DISPATCH(full_forward_shared)};
  run_call<ForwardScratch>(call, arena);
}

void full_backward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                   Heads<const float> v, Heads<const float> out, const float* denominator,
                   Heads<const float> dout, const StateUpdateGradients& gradients,
                   Arena& arena) noexcept {
  BackwardCall call{problem,
                    q,
                    k,
                    v,
                    out,
                    denominator,
                    {},
                    dout,
                    {},
                    gradients,
                    full_chunk_tokens(problem),
                    1,
                    false,
                    HWY_DYNAMIC_DISPATCH(full_backward_items),
                    HWY_DYNAMIC_DISPATCH(full_backward_shared)};
  run_call<BackwardScratch>(call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
