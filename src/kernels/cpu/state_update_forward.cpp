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
  bool stream;    ///< out bypasses the caches
  void (*run)(const ForwardCall& call, int64_t begin, int64_t end, float* memory);
  void (*run_shared)(const ForwardCall& call, int64_t item, float* memory) = nullptr;
  int64_t scratch_size = 0;
  int64_t shared_scratch_size = 0;
  float* scratch = nullptr;

  void items(int64_t begin, int64_t end, float* memory) const { run(*this, begin, end, memory); }
  void shared(int64_t item, float* memory) const { run_shared(*this, item, memory); }
};

struct ForwardScratch {
  /// For chunks of `chunk` tokens of `group` heads in turn.
  ForwardScratch(const ForwardCall& call, int64_t chunk, int64_t group, float* memory)
      : space(memory) {
    const int64_t features = call.problem.feature_map.feature_dim;
    phi_q = space.take(chunk * features);
    phi_k = space.take(chunk * features);
    inverse = space.take(chunk);
    s = space.take(group * features * call.problem.value_dim);
    z = space.take(group * features);
    running = space.take(features);
  }
  static ForwardScratch alone(const ForwardCall& call, float* memory) {
    return {call, call.chunk, call.group, memory};
  }
  /// Of each thread that shares a head.
  static ForwardScratch shared(const ForwardCall& call, float* memory) {
    return {call, kSharedChunk, 1, memory};
  }
  Scratch space;
  float* phi_q;    // [chunk, F]
  float* phi_k;    // [chunk, F]
  float* inverse;  // [chunk]: 1 / denominator
  float* s;        // [group, F, V], when the caller keeps no state
  float* z;        // [group, F]
  float* running;  // [F]: a thread's own z
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

/// Items are sequences here: the feature map then sees all heads of a token at once.
void step_items(const ForwardCall& call, int64_t begin, int64_t end, float* memory) {
  const StateUpdateProblem& problem = call.problem;
  const FeatureMap& map = problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = problem.value_dim;
  const int64_t H = problem.num_heads;
  const ForwardScratch scratch = ForwardScratch::alone(call, memory);
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
HWY_EXPORT(causal_forward_shared);
HWY_EXPORT(full_forward_items);
HWY_EXPORT(full_forward_shared);
HWY_EXPORT(step_items);

void run_forward(ForwardCall& call, Arena& arena) {
  call.scratch_size = ForwardScratch::alone(call, nullptr).space.used();
  if (call.problem.pool != nullptr) {
    call.shared_scratch_size =
        call.problem.pool->num_threads() * ForwardScratch::shared(call, nullptr).space.used();
  }
  for_each_head_or_shared(call.problem, call.problem.sequences.count * call.problem.num_heads, call,
                          arena);
}

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
                   causal_chunk_tokens(problem),
                   heads_in_turn(problem, problem.feature_map.feature_dim * problem.value_dim),
                   bypasses_caches(problem, out, problem.value_dim),
                   HWY_DYNAMIC_DISPATCH(causal_forward_items),
                   HWY_DYNAMIC_DISPATCH(causal_forward_shared)};
  run_forward(call, arena);
}

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
  run_forward(call, arena);
}

void state_update_step(const StateUpdateProblem& problem, Heads<const float> q,
                       Heads<const float> k, Heads<const float> v, StatePointers<float> state,
                       Heads<float> out, Arena& arena) noexcept {
  ForwardCall call{problem,
                   q,
                   k,
                   v,
                   state,
                   out,
                   nullptr,
                   problem.num_heads,
                   1,
                   false,
                   HWY_DYNAMIC_DISPATCH(step_items)};
  call.scratch_size = ForwardScratch::alone(call, nullptr).space.used();
  const int64_t work = problem.sequences.count * problem.num_heads *
                       problem.feature_map.feature_dim * problem.value_dim;
  StateUpdateProblem serial = problem;
  serial.pool = nullptr;
  for_each_head(work < kParallelStep ? serial : problem, problem.sequences.count, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
