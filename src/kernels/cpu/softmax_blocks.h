#pragma once

#include <cstdint>

#include "kernels/softmax_attention.h"

namespace tarn::kernels {

inline constexpr int64_t kQueryBlock = kMaxQueryBlock;
inline constexpr int64_t kKeyBlock = 64;
/// Step path: keys that all heads of a sequence work through before the next ones. Their rows (all
/// heads lie side by side in a cache) then cross memory once, in order. Whole vectors of any
/// target.
inline constexpr int64_t kStepKeys = 64;
inline constexpr double kLog2e = 1.4426950408889634074;
inline constexpr double kLn2 = 0.69314718055994530942;

/// Everything that softmax_forward and its step path are given, in one place for the workers.
struct SoftmaxForwardArgs {
  const SoftmaxProblem& problem;
  Heads<const float> q;
  KeyRows<const float> k;
  KeyRows<const float> v;
  Heads<float> out;
  float* log_sum = nullptr;
};

/// What softmax_backward is given.
struct SoftmaxBackwardArgs {
  const SoftmaxProblem& problem;
  Heads<const float> q;
  KeyRows<const float> k;
  KeyRows<const float> v;
  Heads<const float> out;
  const float* log_sum = nullptr;
  Heads<const float> dout;
  Heads<float> dq;
  KeyRows<float> dk;
  KeyRows<float> dv;
};

/// Blocks of queries of one sequence.
int64_t num_query_blocks(const SoftmaxProblem& problem, int64_t sequence);
/// Block `index` with its runs; entries of `from` and `to` past the block's queries see nothing.
void describe_query_block(const SoftmaxProblem& problem, int64_t sequence, int64_t head,
                          int64_t index, QueryBlock& block);

/// The entries of a run that some query of the block sees, and those that all of them see.
struct RunBounds {
  int64_t from = 0;
  int64_t to = 0;
  int64_t all_from = 0;
  int64_t all_to = 0;
};
RunBounds bounds_of(const KeyRun& run, int64_t queries);

/// Sequences of one query: items [begin, end) of sequence·num_kv_heads + kv head; others are left
/// alone. `scratch` has step_scratch_size floats.
int64_t step_scratch_size(const SoftmaxProblem& problem);
void softmax_step_items(const SoftmaxForwardArgs& args, int64_t begin, int64_t end,
                        float* scratch) noexcept;

}  // namespace tarn::kernels
