#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/state_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_update_forward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/small_gemm-inl.h"
#include "kernels/cpu/state_scan-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"

#ifndef TARN_KERNELS_CPU_STATE_UPDATE_FORWARD_ONCE_
#define TARN_KERNELS_CPU_STATE_UPDATE_FORWARD_ONCE_
namespace tarn::kernels {
namespace {

/// One forward call: what all its (sequence, head) pairs share.
struct ForwardCall {
  const StateUpdateProblem& problem;
  Heads<const float> q, k, v;
  StatePointers<float> state;
  Heads<float> out;
  float* denominator;
  int64_t chunk;
  int64_t group;  ///< most heads that take turns
  void (*run)(const ForwardCall& call, int64_t begin, int64_t end, float* memory);
  int64_t scratch_size = 0;
  float* scratch = nullptr;

  void items(int64_t begin, int64_t end, float* memory) const { run(*this, begin, end, memory); }
};

struct ForwardScratch {
  explicit ForwardScratch(const ForwardCall& call, float* memory) : space(memory) {
    const int64_t features = call.problem.feature_map.feature_dim;
    phi_q = space.take(call.chunk * features);
    phi_k = space.take(call.chunk * features);
    inverse = space.take(call.chunk);
    s = space.take(call.group * features * call.problem.value_dim);
    z = space.take(call.group * features);
  }
  Scratch space;
  float* phi_q;    // [chunk, F]
  float* phi_k;    // [chunk, F]
  float* inverse;  // [chunk]: 1 / denominator
  float* s;        // [group, F, V], when the caller keeps no state
  float* z;        // [group, F]
};

}  // namespace
}  // namespace tarn::kernels
#endif  // TARN_KERNELS_CPU_STATE_UPDATE_FORWARD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// The states of a group's heads to work on: the caller's, or zeroed scratch.
HWY_INLINE float* states_or_zeros(float* const* state, const HeadGroup& group, int64_t size,
                                  float* scratch) {
  if (state != nullptr) return state[group.sequence] + group.first * size;
  zero(scratch, group.count * size);
  return scratch;
}

/// Rows [row, row + tokens) of one head.
HWY_INLINE void causal_forward_chunk(const ForwardCall& call, const ForwardScratch& scratch,
                                     int64_t row, int64_t tokens, int64_t head, float* s, float* z,
                                     const RowsAhead& ahead) {
  const StateUpdateProblem& problem = call.problem;
  const FeatureMap& map = problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = problem.value_dim;
  map.forward(map, tokens, call.q.at(row, head), call.q.row_stride, scratch.phi_q);
  map.forward(map, tokens, call.k.at(row, head), call.k.row_stride, scratch.phi_k);
  if (problem.normalise) {
    for (int64_t t = 0; t < tokens; ++t) {
      add_row(scratch.phi_k + t * F, z, F);
      const float denominator = dot(scratch.phi_q + t * F, z, F) + problem.eps;
      scratch.inverse[t] = 1.0f / denominator;
      if (call.denominator != nullptr) {
        call.denominator[(row + t) * problem.num_heads + head] = denominator;
      }
    }
  }
  const Scan chunk{.rows = F,
                   .columns = V,
                   .write = scratch.phi_k,
                   .write_stride = F,
                   .value = call.v.at(row, head),
                   .value_stride = call.v.row_stride,
                   .read = scratch.phi_q,
                   .read_stride = F,
                   .state = s,
                   .state_stride = V,
                   .out = call.out.at(row, head),
                   .out_stride = call.out.row_stride,
                   .scale = problem.normalise ? scratch.inverse : nullptr,
                   .scale_stride = 1};
  scan_and_prefetch(chunk, tokens, ahead);
}

void causal_forward_items(const ForwardCall& call, int64_t begin, int64_t end, float* memory) {
  const StateUpdateProblem& problem = call.problem;
  const int64_t F = problem.feature_map.feature_dim;
  const int64_t V = problem.value_dim;
  const ForwardScratch scratch(call, memory);
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
        causal_forward_chunk(call, scratch, row, tokens, group.first + i, s + i * F * V, z + i * F,
                             ahead);
      }
    }
  }
}

void full_forward_items(const ForwardCall& call, int64_t begin, int64_t end, float* memory) {
  const StateUpdateProblem& problem = call.problem;
  const FeatureMap& map = problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = problem.value_dim;
  const int64_t H = problem.num_heads;
  const ForwardScratch scratch(call, memory);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sequence = item / H;
    const int64_t head = item % H;
    const int64_t first = problem.sequences.begin[sequence];
    const int64_t last = first + problem.sequences.length[sequence];
    zero(scratch.s, F * V);
    zero(scratch.z, F);
    for (int64_t row = first; row < last; row += call.chunk) {
      const int64_t tokens = std::min(call.chunk, last - row);
      map.forward(map, tokens, call.k.at(row, head), call.k.row_stride, scratch.phi_k);
      small_gemm(F, V, tokens, {scratch.phi_k, 1, F}, call.v.at(row, head), call.v.row_stride,
                 scratch.s, V, true);
      for (int64_t t = 0; t < tokens; ++t) add_row(scratch.phi_k + t * F, scratch.z, F);
    }
    for (int64_t row = first; row < last; row += call.chunk) {
      const int64_t tokens = std::min(call.chunk, last - row);
      map.forward(map, tokens, call.q.at(row, head), call.q.row_stride, scratch.phi_q);
      small_gemm(tokens, V, F, {scratch.phi_q, F, 1}, scratch.s, V, call.out.at(row, head),
                 call.out.row_stride, false);
      if (!problem.normalise) continue;
      for (int64_t t = 0; t < tokens; ++t) {
        const float denominator = dot(scratch.phi_q + t * F, scratch.z, F) + problem.eps;
        if (call.denominator != nullptr) call.denominator[(row + t) * H + head] = denominator;
        float* out = call.out.at(row + t, head);
        scale_row(1.0f / denominator, out, out, V);
      }
    }
  }
}

/// Items are sequences here: the feature map then sees all heads of a token at once.
void step_items(const ForwardCall& call, int64_t begin, int64_t end, float* memory) {
  const StateUpdateProblem& problem = call.problem;
  const FeatureMap& map = problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = problem.value_dim;
  const int64_t H = problem.num_heads;
  const ForwardScratch scratch(call, memory);
  for (int64_t sequence = begin; sequence < end; ++sequence) {
    const int64_t row = problem.sequences.begin[sequence];
    map.forward(map, H, call.q.at(row, 0), call.q.head_stride, scratch.phi_q);
    map.forward(map, H, call.k.at(row, 0), call.k.head_stride, scratch.phi_k);
    if (problem.normalise) {
      for (int64_t head = 0; head < H; ++head) {
        float* z = call.state.z[sequence] + head * F;
        add_row(scratch.phi_k + head * F, z, F);
        scratch.inverse[head] = 1.0f / (dot(scratch.phi_q + head * F, z, F) + problem.eps);
      }
    }
    for (int64_t head = 0; head < H; ++head) {
      scan({.rows = F,
            .columns = V,
            .write = scratch.phi_k + head * F,
            .value = call.v.at(row, head),
            .read = scratch.phi_q + head * F,
            .state = call.state.s[sequence] + head * F * V,
            .state_stride = V,
            .out = call.out.at(row, head),
            .scale = problem.normalise ? scratch.inverse + head : nullptr},
           1);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(causal_forward_items);
HWY_EXPORT(full_forward_items);
HWY_EXPORT(step_items);

/// Below this many state elements per call, waking the threads costs more than it saves.
constexpr int64_t kParallelStep = int64_t{1} << 17;

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
                   chunk_tokens(problem),
                   heads_in_turn(problem, problem.feature_map.feature_dim * problem.value_dim),
                   HWY_DYNAMIC_DISPATCH(causal_forward_items)};
  call.scratch_size = ForwardScratch(call, nullptr).space.used();
  for_each_head(problem, problem.sequences.count * problem.num_heads, call, arena);
}

void full_forward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                  Heads<const float> v, Heads<float> out, float* denominator,
                  Arena& arena) noexcept {
  ForwardCall call{problem,     q,
                   k,           v,
                   {},          out,
                   denominator, chunk_tokens(problem),
                   1,           HWY_DYNAMIC_DISPATCH(full_forward_items)};
  call.scratch_size = ForwardScratch(call, nullptr).space.used();
  for_each_head(problem, problem.sequences.count * problem.num_heads, call, arena);
}

void state_update_step(const StateUpdateProblem& problem, Heads<const float> q,
                       Heads<const float> k, Heads<const float> v, StatePointers<float> state,
                       Heads<float> out, Arena& arena) noexcept {
  ForwardCall call{problem, q,
                   k,       v,
                   state,   out,
                   nullptr, problem.num_heads,
                   1,       HWY_DYNAMIC_DISPATCH(step_items)};
  call.scratch_size = ForwardScratch(call, nullptr).space.used();
  const int64_t work = problem.sequences.count * problem.num_heads *
                       problem.feature_map.feature_dim * problem.value_dim;
  StateUpdateProblem serial = problem;
  serial.pool = nullptr;
  for_each_head(work < kParallelStep ? serial : problem, problem.sequences.count, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
