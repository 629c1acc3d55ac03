#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_calls.h"
#include "kernels/state_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_update_forward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/state_scan-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// Rows [row, row + tokens) of one head.
struct ForwardChunk {
  const ForwardCall& call;
  const ForwardScratch& scratch;
  int64_t row, tokens, head;
  float* s;
  float* z;

  const FeatureMap& map() const { return call.problem.feature_map; }
  int64_t features() const { return call.problem.feature_map.feature_dim; }

  HWY_INLINE void map_rows(int64_t begin, int64_t end) const {
    const int64_t at = begin * features();
    map().forward(map(), end - begin, call.q.at(row + begin, head), call.q.row_stride,
                  scratch.phi_q + at);
    map().forward(map(), end - begin, call.k.at(row + begin, head), call.k.row_stride,
                  scratch.phi_k + at);
  }

  /// The denominators of tokens [begin, end); `running` is z before token `begin`, then after `end`.
  HWY_INLINE void divide(int64_t begin, int64_t end, float* running) const {
    const int64_t F = features();
    for (int64_t t = begin; t < end; ++t) {
      add_row(scratch.phi_k + t * F, running, F);
      const float denominator = dot(scratch.phi_q + t * F, running, F) + call.problem.eps;
      scratch.inverse[t] = 1.0f / denominator;
      if (call.denominator != nullptr) {
        call.denominator[(row + t) * call.problem.num_heads + head] = denominator;
      }
    }
  }

  /// The same for a part of the tokens, while `running` goes over all of them.
  HWY_INLINE void divide_part(int64_t begin, int64_t end, float* running) const {
    const int64_t F = features();
    for (int64_t t = 0; t < begin; ++t) add_row(scratch.phi_k + t * F, running, F);
    divide(begin, end, running);
    for (int64_t t = end; t < tokens; ++t) add_row(scratch.phi_k + t * F, running, F);
  }

  HWY_INLINE Scan scan_of() const {
    const int64_t F = features();
    return {.rows = F,
            .columns = call.problem.value_dim,
            .write = scratch.phi_k,
            .write_stride = F,
            .value = call.v.at(row, head),
            .value_stride = call.v.row_stride,
            .read = scratch.phi_q,
            .read_stride = F,
            .state = s,
            .state_stride = call.problem.value_dim,
            .out = call.out.at(row, head),
            .out_stride = call.out.row_stride,
            .scale = call.problem.normalise ? scratch.inverse : nullptr,
            .scale_stride = 1,
            .stream = call.stream};
  }
};

void causal_forward_items(const ForwardCall& call, int64_t begin, int64_t end, float* memory) {
  const StateUpdateProblem& problem = call.problem;
  const int64_t F = problem.feature_map.feature_dim;
  const int64_t V = problem.value_dim;
  const ForwardScratch scratch = ForwardScratch::alone(call, memory);
  const Heads<const float> inputs[] = {call.q, call.k, call.v};
  const int64_t widths[] = {problem.key_dim, problem.key_dim, V};
  while (begin < end) {
    const HeadGroup group = HeadGroup::at(problem, begin, end, call.group);
    begin += group.count;
    float* s = states_or_zeros(call.state.s, group, F * V, scratch.s);
    float* z = states_or_zeros(call.state.z, group, F, scratch.z);
    const int64_t first = problem.sequences.begin[group.sequence];
    const int64_t last = first + problem.sequences.length[group.sequence];
    for (int64_t row = first; row < last; row += call.chunk) {
      const int64_t tokens = std::min(call.chunk, last - row);
      for (int64_t i = 0; i < group.count; ++i) {
        const bool same_rows = i + 1 < group.count;
        const RowsAhead ahead{.tensors = inputs,
                              .widths = widths,
                              .count = 3,
                              .head = group.first + (same_rows ? i + 1 : 0),
                              .first = same_rows ? row : row + call.chunk,
                              .begin = row,
                              .end = last};
        const ForwardChunk chunk{call,          scratch,  row, tokens, group.first + i,
                                 s + i * F * V, z + i * F};
        chunk.map_rows(0, tokens);
        if (problem.normalise) chunk.divide(0, tokens, chunk.z);
        if (!call.stream) prefetch_for_writing(call.out, row, tokens, chunk.head, V);
        scan_and_prefetch(chunk.scan_of(), tokens, ahead);
      }
    }
  }
  if (call.stream) hwy::FlushStream();
}

/// One head by all threads, each with columns of the state of its own. Every thread maps all rows,
/// which costs less than fetching what another core has written; they split the denominators.
void causal_forward_shared(const ForwardCall& call, int64_t item, float* memory) {
  const StateUpdateProblem& problem = call.problem;
  const int64_t F = problem.feature_map.feature_dim;
  const int64_t V = problem.value_dim;
  const int64_t threads = problem.pool->num_threads();
  const HeadGroup group = HeadGroup::at(problem, item, item + 1, 1);
  const ForwardScratch common = ForwardScratch::shared(call, memory);
  float* s = states_or_zeros(call.state.s, group, F * V, common.s);
  float* z = states_or_zeros(call.state.z, group, F, common.z);
  const auto own = [&](int64_t thread) {
    ForwardScratch scratch = ForwardScratch::shared(call, memory + thread * common.space.used());
    scratch.inverse = common.inverse;
    return scratch;
  };
  for (int64_t thread = 0; thread < threads; ++thread) copy(z, own(thread).running, F);
  const Together together{problem.pool};
  const int64_t first = problem.sequences.begin[group.sequence];
  const int64_t last = first + problem.sequences.length[group.sequence];
  for (int64_t row = first; row < last; row += kSharedChunk) {
    const int64_t tokens = std::min(kSharedChunk, last - row);
    together(threads, [&](int64_t thread, int64_t, int) {
      const ForwardScratch scratch = own(thread);
      const ForwardChunk chunk{call, scratch, row, tokens, group.first, s, z};
      chunk.map_rows(0, tokens);
      if (!problem.normalise) return;
      chunk.divide_part(tokens * thread / threads, tokens * (thread + 1) / threads,
                        scratch.running);
    });
    together(threads, [&](int64_t thread, int64_t, int) {
      const ForwardScratch scratch = own(thread);
      const ForwardChunk chunk{call, scratch, row, tokens, group.first, s, z};
      scan_part(chunk.scan_of(), tokens, thread, threads);
      if (call.stream) hwy::FlushStream();
    });
  }
  if (problem.normalise) copy(common.running, z, F);
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(causal_forward_items);
HWY_EXPORT(causal_forward_shared);

}  // namespace

void causal_forward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                    Heads<const float> v, StatePointers<float> state, Heads<float> out,
                    float* denominator, Arena& arena) noexcept {
  ForwardCall call{problem,
                   q,
                   k,
                   v,
                   state,
                   out,
                   denominator,
                   causal_chunk_tokens(problem),
                   heads_in_turn(problem, problem.feature_map.feature_dim * problem.value_dim),
                   bypasses_caches(problem, out, problem.value_dim),
                   HWY_DYNAMIC_DISPATCH(causal_forward_items),
                   HWY_DYNAMIC_DISPATCH(causal_forward_shared)};
  run_call<ForwardScratch>(call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
