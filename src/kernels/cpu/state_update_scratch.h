#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/state_update.h"

namespace tarn::kernels {

/// Hands out cache-line aligned pieces of one thread's scratch memory. With a null start it only
/// counts, so that the size needed comes from the very code that uses it.
class Scratch {
 public:
  explicit Scratch(float* start) : start_(start) {}
  float* take(int64_t size) {
    float* piece = start_ == nullptr ? nullptr : start_ + used_;
    used_ += (size + kLine - 1) / kLine * kLine;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
  float* start_;
  int64_t used_ = 0;
};

/// Tokens per chunk: what the caller asked for, else as many as keep the chunk's rows and the
/// state within the first-level cache. Depends on shapes alone.
inline int64_t chunk_tokens(const StateUpdateProblem& problem) {
  constexpr int64_t kFloats = 6144;
  constexpr int64_t kMost = 1024;
  int64_t longest = 1;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    longest = std::max(longest, problem.sequences.length[i]);
  }
  int64_t tokens = problem.chunk_size;
  if (tokens <= 0) {
    const int64_t per_token = 2 * problem.feature_map.feature_dim + problem.value_dim;
    tokens = std::clamp<int64_t>(kFloats / per_token / 8 * 8, 8, 128);
  }
  return std::min({tokens, longest, kMost});
}

/// Heads of one sequence that take turns chunk by chunk, so that memory is read in long runs: the
/// rows of one head alone lie far apart. As many as keep their states, `floats_per_head` each, in
/// the second-level cache.
inline int64_t heads_in_turn(const StateUpdateProblem& problem, int64_t floats_per_head) {
  constexpr int64_t kFloats = int64_t{1} << 17;
  return std::clamp<int64_t>(kFloats / std::max<int64_t>(1, floats_per_head), 1,
                             std::max<int64_t>(1, problem.num_heads));
}

/// Neighbouring heads of one sequence.
struct HeadGroup {
  int64_t sequence = 0;
  int64_t first = 0;
  int64_t count = 0;

  /// The longest group of at most `most` heads that starts at item `begin` (of sequences × heads).
  static HeadGroup at(const StateUpdateProblem& problem, int64_t begin, int64_t end, int64_t most) {
    const int64_t heads = problem.num_heads;
    return {begin / heads, begin % heads, std::min({most, heads - begin % heads, end - begin})};
  }
};

/// Runs `call.items(begin, end, scratch)` over all (sequence, head) pairs on the problem's threads,
/// each with `call.scratch_size` floats of its own. The closure is one pointer, so that the
/// function object needs no memory.
template <class Call>
void for_each_head(const StateUpdateProblem& problem, int64_t count, Call& call, Arena& arena) {
  ArenaScope scope(arena);
  const int64_t threads = problem.pool != nullptr ? problem.pool->num_threads() : 1;
  call.scratch = arena.alloc<float>(threads * call.scratch_size);
  parallel_for(problem.pool, count, [&call](int64_t begin, int64_t end, int thread) {
    call.items(begin, end, call.scratch + thread * call.scratch_size);
  });
}

}  // namespace tarn::kernels
