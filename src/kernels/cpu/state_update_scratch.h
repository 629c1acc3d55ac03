#pragma once

#include <algorithm>
#include <bit>
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

/// Tokens per chunk: what the caller asked for, else `automatic`; no more than the longest sequence.
inline int64_t chunk_tokens(const StateUpdateProblem& problem, int64_t automatic) {
  constexpr int64_t kMost = 1024;
  int64_t longest = 1;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    longest = std::max(longest, problem.sequences.length[i]);
  }
  return std::min({problem.chunk_size > 0 ? problem.chunk_size : automatic, longest, kMost});
}

/// For the recurrence, by shape: 4 tokens for heads of 64 and more, 16 for 32, 32 for 16; powers of
/// two, so that sequences cut at multiples of 32 keep their bits (MixerDef::cut_quantum). A chunk
/// of one head is a set of short runs of memory, far apart; the fewer, the better they are fetched
/// beside the arithmetic (heads of 64 among 8, 16,384 tokens: 25 % less time than with 32), but
/// small heads then spend their time on starting chunks.
inline int64_t causal_chunk_tokens(const StateUpdateProblem& problem) {
  const int64_t per_token = 2 * problem.feature_map.feature_dim + problem.value_dim;
  constexpr int64_t kMeasured = 4 * 192 * 192;
  const auto tokens = static_cast<uint64_t>(kMeasured / (per_token * per_token));
  return chunk_tokens(problem,
                      static_cast<int64_t>(std::clamp<uint64_t>(std::bit_floor(tokens), 4, 32)));
}

/// For sums over a whole sequence: as many as keep the chunk's rows and the state within the
/// first-level cache.
inline int64_t full_chunk_tokens(const StateUpdateProblem& problem) {
  constexpr int64_t kFloats = 6144;
  const int64_t per_token = 2 * problem.feature_map.feature_dim + problem.value_dim;
  return chunk_tokens(problem, std::clamp<int64_t>(kFloats / per_token / 8 * 8, 8, 128));
}

/// Whether rows that a call writes should bypass the caches. Threads that work on neighbouring heads
/// write neighbouring parts of a row, and caches that fetch whole neighbourhoods before a write then
/// take lines from each other (two cores without a common cache: 15 % of the time). Only what is too
/// large to be found in a cache afterwards, and whole vectors of any target (64 bytes).
inline bool bypasses_caches(const StateUpdateProblem& problem, const Heads<float>& to,
                            int64_t width) {
  constexpr int64_t kFloats = int64_t{1} << 21;
  constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
  int64_t rows = 0;
  for (int64_t i = 0; i < problem.sequences.count; ++i) rows += problem.sequences.length[i];
  const bool shared = problem.pool != nullptr && problem.pool->num_threads() > 1;
  const auto address = reinterpret_cast<uintptr_t>(to.data);
  return shared && rows * problem.num_heads * width >= kFloats && address % kAlignment == 0 &&
         to.row_stride % kLine == 0 && to.head_stride % kLine == 0 && width % kLine == 0;
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

/// The states of a group's heads to work on: the caller's, or zeroed scratch.
inline float* states_or_zeros(float* const* state, const HeadGroup& group, int64_t size,
                              float* scratch) {
  if (state != nullptr) return state[group.sequence] + group.first * size;
  std::fill_n(scratch, group.count * size, 0.0f);
  return scratch;
}

/// Work on one head by the thread that calls: `body(begin, end, thread)` over all of [0, count).
struct Alone {
  static constexpr int kThreads = 1;
  template <class Body>
  void operator()(int64_t count, const Body& body) const {
    if (count > 0) body(int64_t{0}, count, 0);
  }
};

/// Work on one head by all threads of a pool: each takes a piece of [0, count). The closure that
/// the pool gets is one pointer, so that the function object needs no memory.
struct Together {
  ThreadPool* pool;
  template <class Body>
  void operator()(int64_t count, const Body& body) const {
    pool->parallel_for(
        count, [&body](int64_t begin, int64_t end, int thread) { body(begin, end, thread); });
  }
};

/// Tokens per chunk when threads share a head: enough work between two waits for each other.
constexpr int64_t kSharedChunk = 256;

/// How many of `count` (sequence, head) pairs are too few to give each thread as many: all threads
/// share each of these, the last ones. None where sharing costs more than it gains.
inline int64_t shared_heads(const StateUpdateProblem& problem, int64_t count) {
  constexpr int64_t kLeastWork = int64_t{1} << 20;  // multiply-adds
  int64_t longest = 0;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    longest = std::max(longest, problem.sequences.length[i]);
  }
  const int64_t work = longest * problem.feature_map.feature_dim * problem.value_dim;
  if (problem.pool == nullptr || work < kLeastWork) return 0;
  return count % problem.pool->num_threads();
}

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

/// The same, but the pairs that would not come out even are done one after the other by
/// `call.shared(item, scratch)`, with `call.shared_scratch_size` floats, on all threads.
template <class Call>
void for_each_head_or_shared(const StateUpdateProblem& problem, int64_t count, Call& call,
                             Arena& arena) {
  const int64_t shared = shared_heads(problem, count);
  if (shared < count) for_each_head(problem, count - shared, call, arena);
  if (shared == 0) return;
  ArenaScope scope(arena);
  float* scratch = arena.alloc<float>(call.shared_scratch_size);
  for (int64_t item = count - shared; item < count; ++item) call.shared(item, scratch);
}

}  // namespace tarn::kernels
