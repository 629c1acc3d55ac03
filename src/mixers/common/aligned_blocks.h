#pragma once

#include <algorithm>

#include "kernels/softmax_attention.h"

namespace tarn::mixers {

/// Blocks of consecutive queries that end where multiples of `size` tokens do (counted from the
/// sequence's first token, not the call's), so that what a query sees may depend on its block.
struct AlignedBlocks {
  int64_t size = 1;

  /// Tokens before the call.
  static int64_t earlier(const kernels::SoftmaxProblem& problem, int64_t sequence) {
    return problem.keys.length[sequence] - problem.queries.length[sequence];
  }
  int64_t parts() const { return (size + kernels::kMaxQueryBlock - 1) / kernels::kMaxQueryBlock; }
  int64_t count(const kernels::SoftmaxProblem& problem, int64_t sequence) const {
    const int64_t first = earlier(problem, sequence);
    const int64_t tokens = problem.queries.length[sequence];
    if (tokens <= 1) return tokens;
    return ((first + tokens - 1) / size - first / size + 1) * parts();
  }
  /// Sets the queries of block `index`, perhaps none; returns the position of the first.
  int64_t describe(const kernels::SoftmaxProblem& problem, int64_t sequence, int64_t index,
                   kernels::QueryBlock& block) const {
    const int64_t start = earlier(problem, sequence);
    const int64_t tokens = problem.queries.length[sequence];
    const int64_t begin = (start / size + index / parts()) * size;
    const int64_t part = begin + index % parts() * kernels::kMaxQueryBlock;
    const int64_t first = tokens == 1 ? start : std::max(part, start);
    const int64_t end = std::min({part + kernels::kMaxQueryBlock, begin + size, start + tokens});
    block.step = 1;
    block.count = tokens == 1 ? 1 : std::max<int64_t>(0, end - first);
    block.first = block.count == 0 ? 0 : first - start;
    return first;
  }
};

}  // namespace tarn::mixers
