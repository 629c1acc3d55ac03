#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/state_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_update_parallel.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/small_gemm-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"

#ifndef TARN_KERNELS_CPU_STATE_UPDATE_PARALLEL_ONCE_
#define TARN_KERNELS_CPU_STATE_UPDATE_PARALLEL_ONCE_
namespace tarn::kernels {
namespace {

constexpr int64_t kBlock = 64;  // queries and keys per block of scores

/// One call of the parallel form: what all its (sequence, head) pairs share.
struct ParallelCall {
  const StateUpdateProblem& problem;
  Heads<const float> q, k, v;
  StatePointers<float> state;
  Heads<float> out;
  float* denominator;
  void (*run)(const ParallelCall& call, int64_t begin, int64_t end, float* memory);
  int64_t scratch_size = 0;
  float* scratch = nullptr;

  void items(int64_t begin, int64_t end, float* memory) const { run(*this, begin, end, memory); }
};

struct ParallelScratch {
  explicit ParallelScratch(const ParallelCall& call, float* memory) : space(memory) {
    const int64_t features = call.problem.feature_map.feature_dim;
    phi_q = space.take(kBlock * features);
    phi_k = space.take(kBlock * features);
    transposed = space.take(kBlock * features);
    scores = space.take(kBlock * kBlock);
    sum = space.take(kBlock);
  }
  Scratch space;
  float* phi_q;       // [block, F]
  float* phi_k;       // [block, F]
  float* transposed;  // [F, block]: φ(k)ᵀ
  float* scores;      // [block, block]
  float* sum;         // [block]: denominators
};

/// One (sequence, head) of a call.
struct ParallelItem {
  int64_t sequence, head, first, last;
};

}  // namespace
}  // namespace tarn::kernels
#endif  // TARN_KERNELS_CPU_STATE_UPDATE_PARALLEL_ONCE_

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// Adds what queries [row, row + queries) read from keys [key, key + keys). On the diagonal a
/// query stops at its own key, so that no value of the future is even multiplied by zero.
void add_block(const ParallelCall& call, const ParallelScratch& scratch, const ParallelItem& item,
               int64_t row, int64_t queries, int64_t key, int64_t keys) {
  const FeatureMap& map = call.problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = call.problem.value_dim;
  map.forward(map, keys, call.k.at(key, item.head), call.k.row_stride, scratch.phi_k);
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t f = 0; f < F; ++f) {
      scratch.transposed[f * kBlock + j] = scratch.phi_k[j * F + f];
    }
  }
  small_gemm(queries, keys, F, {scratch.phi_q, F, 1}, scratch.transposed, kBlock, scratch.scores,
             kBlock, false);
  const float* values = call.v.at(key, item.head);
  const bool diagonal = key == row;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t seen = diagonal ? i + 1 : keys;
    for (int64_t j = 0; j < seen; ++j) scratch.sum[i] += scratch.scores[i * kBlock + j];
    if (diagonal) {
      small_gemm(1, V, seen, {scratch.scores + i * kBlock, kBlock, 1}, values, call.v.row_stride,
                 call.out.at(row + i, item.head), call.out.row_stride, true);
    }
  }
  if (!diagonal) {
    small_gemm(queries, V, keys, {scratch.scores, kBlock, 1}, values, call.v.row_stride,
               call.out.at(row, item.head), call.out.row_stride, true);
  }
}

/// Answers queries [row, row + queries) from the initial state and every key up to their own.
void answer_block(const ParallelCall& call, const ParallelScratch& scratch,
                  const ParallelItem& item, int64_t row, int64_t queries) {
  const StateUpdateProblem& problem = call.problem;
  const FeatureMap& map = problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = problem.value_dim;
  map.forward(map, queries, call.q.at(row, item.head), call.q.row_stride, scratch.phi_q);
  float* out = call.out.at(row, item.head);
  if (call.state.s != nullptr) {
    small_gemm(queries, V, F, {scratch.phi_q, F, 1},
               call.state.s[item.sequence] + item.head * F * V, V, out, call.out.row_stride, false);
  } else {
    for (int64_t i = 0; i < queries; ++i) std::fill_n(out + i * call.out.row_stride, V, 0.0f);
  }
  for (int64_t i = 0; i < queries; ++i) {
    scratch.sum[i] = call.state.z == nullptr ? 0.0f
                                             : dot(scratch.phi_q + i * F,
                                                   call.state.z[item.sequence] + item.head * F, F);
  }
  for (int64_t key = item.first; key <= row; key += kBlock) {
    add_block(call, scratch, item, row, queries, key, std::min(kBlock, item.last - key));
  }
  if (!problem.normalise) return;
  for (int64_t i = 0; i < queries; ++i) {
    const float denominator = scratch.sum[i] + problem.eps;
    if (call.denominator != nullptr) {
      call.denominator[(row + i) * problem.num_heads + item.head] = denominator;
    }
    scale_row(1.0f / denominator, out + i * call.out.row_stride, out + i * call.out.row_stride, V);
  }
}

/// S += Σ φ(k) ⊗ v and z += Σ φ(k) over the item's tokens, after every query has read the old ones.
void advance_state(const ParallelCall& call, const ParallelScratch& scratch,
                   const ParallelItem& item) {
  const FeatureMap& map = call.problem.feature_map;
  const int64_t F = map.feature_dim;
  const int64_t V = call.problem.value_dim;
  for (int64_t key = item.first; key < item.last; key += kBlock) {
    const int64_t keys = std::min(kBlock, item.last - key);
    map.forward(map, keys, call.k.at(key, item.head), call.k.row_stride, scratch.phi_k);
    small_gemm(F, V, keys, {scratch.phi_k, 1, F}, call.v.at(key, item.head), call.v.row_stride,
               call.state.s[item.sequence] + item.head * F * V, V, true);
    if (call.state.z == nullptr) continue;
    for (int64_t t = 0; t < keys; ++t) {
      add_row(scratch.phi_k + t * F, call.state.z[item.sequence] + item.head * F, F);
    }
  }
}

void causal_parallel_items(const ParallelCall& call, int64_t begin, int64_t end, float* memory) {
  const StateUpdateProblem& problem = call.problem;
  const ParallelScratch scratch(call, memory);
  for (int64_t index = begin; index < end; ++index) {
    ParallelItem item{index / problem.num_heads, index % problem.num_heads, 0, 0};
    item.first = problem.sequences.begin[item.sequence];
    item.last = item.first + problem.sequences.length[item.sequence];
    for (int64_t row = item.first; row < item.last; row += kBlock) {
      answer_block(call, scratch, item, row, std::min(kBlock, item.last - row));
    }
    if (call.state.s != nullptr) advance_state(call, scratch, item);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {
HWY_EXPORT(causal_parallel_items);
}  // namespace

void causal_parallel_forward(const StateUpdateProblem& problem, Heads<const float> q,
                             Heads<const float> k, Heads<const float> v, StatePointers<float> state,
                             Heads<float> out, float* denominator, Arena& arena) noexcept {
  ParallelCall call{problem, q,   k,           v,
                    state,   out, denominator, HWY_DYNAMIC_DISPATCH(causal_parallel_items)};
  call.scratch_size = ParallelScratch(call, nullptr).space.used();
  for_each_head(problem, problem.sequences.count * problem.num_heads, call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
