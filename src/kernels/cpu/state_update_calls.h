#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/state_update_scratch.h"
#include "kernels/state_update.h"

namespace tarn::kernels {

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

/// One backward call: what all its (sequence, head) pairs share.
struct BackwardCall {
  const StateUpdateProblem& problem;
  Heads<const float> q, k, v, out;
  const float* denominator;
  StatePointers<const float> initial;
  Heads<const float> dout;
  StatePointers<const float> dfinal;
  const StateUpdateGradients& gradients;
  int64_t chunk;
  int64_t group;  ///< most heads that take turns
  bool stream;    ///< dq, dk and dv bypass the caches
  void (*run)(const BackwardCall& call, int64_t begin, int64_t end, float* memory);
  void (*run_shared)(const BackwardCall& call, int64_t item, float* memory);
  int64_t scratch_size = 0;
  int64_t shared_scratch_size = 0;
  float* scratch = nullptr;

  void items(int64_t begin, int64_t end, float* memory) const { run(*this, begin, end, memory); }
  void shared(int64_t item, float* memory) const { run_shared(*this, item, memory); }
  int64_t extended_dim() const { return problem.value_dim + (problem.normalise ? 1 : 0); }
  /// Row stride of [v | 1] and [dnum | dden]: whole cache lines, so that vectors do not straddle.
  int64_t extended_stride() const {
    constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
    return (extended_dim() + kLine - 1) / kLine * kLine;
  }
};

struct BackwardScratch {
  /// For chunks of `tokens` tokens of `group` heads in turn.
  BackwardScratch(const BackwardCall& call, int64_t tokens, int64_t group, float* memory)
      : space(memory),
        chunk(tokens),
        inputs{call.q, call.k, call.v, call.dout, call.out},
        widths{call.problem.key_dim, call.problem.key_dim, call.problem.value_dim,
               call.problem.value_dim, call.problem.value_dim} {
    const int64_t features = call.problem.feature_map.feature_dim;
    const int64_t extended = call.extended_dim();
    const int64_t stride = call.extended_stride();
    phi_q = space.take(chunk * features);
    phi_k = space.take(chunk * features);
    dphi = space.take(chunk * features);
    dx = space.take(call.stream ? chunk * call.problem.key_dim : 0);
    value = space.take(chunk * stride);
    dnum = space.take(chunk * stride);
    r = space.take(group * features * call.problem.value_dim);
    prefix = space.take(group * extended * features);
    suffix = space.take(group * extended * features);
  }
  static BackwardScratch alone(const BackwardCall& call, float* memory) {
    return {call, call.chunk, call.group, memory};
  }
  /// Of each thread that shares a head.
  static BackwardScratch shared(const BackwardCall& call, float* memory) {
    return {call, kSharedChunk, 1, memory};
  }
  Scratch space;
  int64_t chunk;
  Heads<const float> inputs[5];
  int64_t widths[5];
  float* phi_q;   // [chunk, F]
  float* phi_k;   // [chunk, F]
  float* dphi;    // [chunk, F]
  float* dx;      // [chunk, K]: dq or dk on their way past the caches
  float* value;   // [chunk, V + 1]: [v | 1]
  float* dnum;    // [chunk, V + 1]: [dnum | dden]
  float* r;       // [group, F, V]: R
  float* prefix;  // [group, V + 1, F]: Sᵀ over z
  float* suffix;  // [group, V + 1, F]: Rᵀ over w
};

/// Runs a call over all its heads; ScratchOf is ForwardScratch or BackwardScratch.
template <class ScratchOf, class Call>
void run_call(Call& call, Arena& arena) {
  const StateUpdateProblem& problem = call.problem;
  call.scratch_size = ScratchOf::alone(call, nullptr).space.used();
  if (problem.pool != nullptr) {
    call.shared_scratch_size =
        problem.pool->num_threads() * ScratchOf::shared(call, nullptr).space.used();
  }
  for_each_head_or_shared(problem, problem.sequences.count * problem.num_heads, call, arena);
}

}  // namespace tarn::kernels
