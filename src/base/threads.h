#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace tarn {

/// A fixed set of worker threads for data-parallel loops with a static split: the same range goes
/// to the same part whatever the timing, so results do not depend on scheduling. Workers flush
/// denormals to zero. Threads: one loop at a time per pool; calls from inside a loop run serially.
class ThreadPool {
 public:
  /// Total number of threads that take part, the caller included; at least 1.
  explicit ThreadPool(int num_threads);

  /// Runs `piece(0) … piece(pieces - 1)` on somebody else's threads and waits for them.
  using PieceRunner = std::function<void(int pieces, const std::function<void(int)>& piece)>;
  /// A pool without threads of its own: training lends it OpenMP's, so that two pools never
  /// compete.
  ThreadPool(int num_threads, PieceRunner runner);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  /// Calls `body(begin, end, thread)` on contiguous pieces that cover [0, count) once. At most
  /// num_threads() pieces; empty pieces are not called. Returns when all are done.
  void parallel_for(int64_t count,
                    const std::function<void(int64_t begin, int64_t end, int thread)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// `pool->parallel_for`, or one serial call when `pool` is null.
void parallel_for(ThreadPool* pool, int64_t count,
                  const std::function<void(int64_t begin, int64_t end, int thread)>& body);

/// Threads that this process may use (cpuset included); at least 1.
int available_threads();

/// Sets flush-to-zero and denormals-are-zero for the calling thread where the CPU has it.
void flush_denormals();

}  // namespace tarn
