#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tarn {
namespace {

thread_local bool inside_loop = false;

int64_t piece_begin(int64_t count, int pieces, int piece) { return count * piece / pieces; }

}  // namespace

struct ThreadPool::Impl {
  int num_threads = 1;
  PieceRunner runner;
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable start;
  std::condition_variable done;
  uint64_t generation = 0;
  int running = 0;
  bool stopping = false;
  int64_t count = 0;
  int pieces = 1;
  const std::function<void(int64_t, int64_t, int)>* body = nullptr;

  void work(int thread) {
    flush_denormals();
    inside_loop = true;
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      start.wait(lock, [&] { return stopping || generation != seen; });
      if (stopping) return;
      seen = generation;
      const bool takes_part = thread < pieces;
      const int64_t begin = takes_part ? piece_begin(count, pieces, thread) : 0;
      const int64_t end = takes_part ? piece_begin(count, pieces, thread + 1) : 0;
      if (begin < end) {
        lock.unlock();
        (*body)(begin, end, thread);
        lock.lock();
      }
      if (--running == 0) done.notify_one();
    }
  }

  void stop() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    start.notify_all();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  impl_->num_threads = std::max(1, num_threads);
  Impl* impl = impl_.get();
  try {
    for (int thread = 1; thread < impl->num_threads; ++thread) {
      impl->workers.emplace_back([impl, thread] { impl->work(thread); });
    }
  } catch (...) {  // no memory for a further thread: those that run must not outlive the pool
    impl->stop();
    throw;
  }
}

ThreadPool::ThreadPool(int num_threads, PieceRunner runner) : impl_(std::make_unique<Impl>()) {
  impl_->num_threads = std::max(1, num_threads);
  impl_->runner = std::move(runner);
}

ThreadPool::~ThreadPool() { impl_->stop(); }

int ThreadPool::num_threads() const { return impl_->num_threads; }

void ThreadPool::parallel_for(int64_t count,
                              const std::function<void(int64_t, int64_t, int)>& body) {
  if (count <= 0) return;
  const int pieces = static_cast<int>(std::min<int64_t>(num_threads(), count));
  if (pieces == 1 || inside_loop) {
    body(0, count, 0);
    return;
  }
  if (impl_->runner) {
    impl_->runner(pieces, [&](int piece) {
      const bool outer = std::exchange(inside_loop, true);
      body(piece_begin(count, pieces, piece), piece_begin(count, pieces, piece + 1), piece);
      inside_loop = outer;
    });
    return;
  }
  {
    std::lock_guard lock(impl_->mutex);
    impl_->count = count;
    impl_->pieces = pieces;
    impl_->body = &body;
    impl_->running = static_cast<int>(impl_->workers.size());
    ++impl_->generation;
  }
  impl_->start.notify_all();
  inside_loop = true;
  body(0, piece_begin(count, pieces, 1), 0);
  inside_loop = false;
  std::unique_lock lock(impl_->mutex);
  impl_->done.wait(lock, [&] { return impl_->running == 0; });
}

void parallel_for(ThreadPool* pool, int64_t count,
                  const std::function<void(int64_t, int64_t, int)>& body) {
  if (pool != nullptr) {
    pool->parallel_for(count, body);
  } else if (count > 0) {
    body(0, count, 0);
  }
}

int available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);  // flush-to-zero and denormals-are-zero
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | (uint64_t{1} << 24)));
#endif
}

}  // namespace tarn
