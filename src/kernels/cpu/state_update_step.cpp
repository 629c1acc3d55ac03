#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_calls.h"
#include "kernels/state_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_update_step.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/state_scan-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

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

HWY_EXPORT(step_items);

/// Below this many state elements per call, waking the threads costs more than it saves.
constexpr int64_t kParallelStep = int64_t{1} << 17;

}  // namespace

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
