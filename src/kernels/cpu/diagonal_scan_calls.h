#pragma once

#include <algorithm>
#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/diagonal_scan.h"

namespace tarn::kernels {

/// Tokens from one saved state to the next.
constexpr int64_t kSelectiveChunk = 32;
constexpr int64_t kStateSpaceChunk = 64;

/// Channels come in groups of whole cache lines: at most 16 groups, because each needs rows of its
/// own for the sums over channels, and at least 64 channels each.
struct ChannelGroups {
  explicit ChannelGroups(int64_t channels)
      : total(channels),
        size(std::max(kLeast, ((channels + kMost - 1) / kMost + kLeast - 1) / kLeast * kLeast)) {}
  int64_t count() const { return (total + size - 1) / size; }
  int64_t begin(int64_t group) const { return group * size; }
  int64_t end(int64_t group) const { return std::min(total, (group + 1) * size); }

  static constexpr int64_t kLeast = 64;
  static constexpr int64_t kMost = 16;
  int64_t total;
  int64_t size;
};

/// States at the chunks' borders: [chunks of all sequences][channels/64][planes][64].
struct Borders {
  Borders(const DiagonalScanProblem& problem, int64_t planes_in, int64_t chunk_in)
      : sequences(problem.sequences),
        planes(planes_in),
        chunk(chunk_in),
        channels((problem.num_channels + kStride - 1) / kStride * kStride) {}
  /// Chunks of the sequences before one.
  int64_t before(int64_t sequence) const {
    int64_t sum = 0;
    for (int64_t i = 0; i < sequence; ++i) sum += (sequences.length[i] + chunk - 1) / chunk;
    return sum;
  }
  int64_t size() const { return before(sequences.count) * planes * channels; }
  int64_t offset(int64_t chunk_index, int64_t channel) const {
    return chunk_index * planes * channels + channel / kStride * kStride * planes +
           channel % kStride;
  }

  static constexpr int64_t kStride = 64;  ///< from plane to plane

  Sequences sequences;
  int64_t planes;
  int64_t chunk;
  int64_t channels;  ///< padded
};

/// Runs `call.items(call, begin, end, scratch)` over [0, count) on the pool's threads, each with
/// `call.scratch_size` floats of its own. The closure is one pointer: no memory for the function.
template <class Call>
void for_each_item(ThreadPool* pool, int64_t count, Call& call, Arena& arena) {
  ArenaScope scope(arena);
  const int64_t threads = pool != nullptr ? pool->num_threads() : 1;
  call.scratch = arena.alloc<float>(threads * call.scratch_size);
  parallel_for(pool, count, [&call](int64_t begin, int64_t end, int thread) {
    call.items(call, begin, end, call.scratch + thread * call.scratch_size);
  });
}

/// Below this many state elements per call of a step, waking the threads costs more than it saves.
constexpr int64_t kParallelScanStep = int64_t{1} << 16;

/// The problem with one token per sequence; `ones` holds sequences.count numbers.
inline DiagonalScanProblem one_token_each(const DiagonalScanProblem& problem, int64_t* ones) {
  DiagonalScanProblem step = problem;
  std::fill_n(ones, problem.sequences.count, int64_t{1});
  step.sequences.length = ones;
  const int64_t work = problem.sequences.count * problem.num_channels * problem.state_dim;
  if (work < kParallelScanStep) step.pool = nullptr;
  return step;
}

}  // namespace tarn::kernels
