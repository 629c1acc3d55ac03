#include "kernels/cpu/softmax_blocks.h"

#include <algorithm>

namespace tarn::kernels {
namespace {

/// All keys, or the causal prefix, in consecutive blocks of queries.
void describe_dense(const SoftmaxProblem& problem, int64_t sequence, int64_t index,
                    QueryBlock& block) {
  const int64_t n = problem.queries.length[sequence];
  const int64_t m = problem.keys.length[sequence];
  block.first = index * kQueryBlock;
  block.step = 1;
  block.count = std::min(kQueryBlock, n - block.first);
  KeyRun& run = block.add_run(0, 1, m);
  for (int64_t r = 0; r < block.count; ++r) {
    const int64_t limit =
        problem.causal ? std::clamp<int64_t>(m - n + block.first + r + 1, 0, m) : m;
    run.from[r] = 0;
    run.to[r] = static_cast<int32_t>(limit);
  }
}

}  // namespace

int64_t num_query_blocks(const SoftmaxProblem& problem, int64_t sequence) {
  if (problem.pattern != nullptr) return problem.pattern->num_blocks(problem, sequence);
  return (problem.queries.length[sequence] + kQueryBlock - 1) / kQueryBlock;
}

void describe_query_block(const SoftmaxProblem& problem, int64_t sequence, int64_t head,
                          int64_t index, QueryBlock& block) {
  block.num_runs = 0;
  if (problem.pattern == nullptr) {
    describe_dense(problem, sequence, index, block);
  } else {
    problem.pattern->describe(problem, sequence, head, index, block);
  }
  for (int64_t i = 0; i < block.num_runs; ++i) {
    std::fill(block.runs[i].from + block.count, block.runs[i].from + kQueryBlock, 0);
    std::fill(block.runs[i].to + block.count, block.runs[i].to + kQueryBlock, 0);
  }
}

RunBounds bounds_of(const KeyRun& run, int64_t queries) {
  RunBounds bounds{run.count, 0, 0, run.count};
  for (int64_t r = 0; r < queries; ++r) {
    const int64_t from = run.from[r];
    const int64_t to = run.to[r];
    if (from < to) {
      bounds.from = std::min(bounds.from, from);
      bounds.to = std::max(bounds.to, to);
      bounds.all_from = std::max(bounds.all_from, from);
      bounds.all_to = std::min(bounds.all_to, to);
    } else {
      bounds.all_to = 0;
    }
  }
  return bounds;
}

}  // namespace tarn::kernels
