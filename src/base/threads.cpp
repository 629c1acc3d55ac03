#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
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

/// Tells the CPU that this is a waiting loop.
void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Returns once `value` is no longer `old`: loops of a kernel follow each other within microseconds,
/// which is less than sleeping and waking cost, so it spins first, but not for long.
template <class T>
void wait_for_change(const std::atomic<T>& value, T old, bool spin) {
  constexpr auto kSpin = std::chrono::microseconds(50);
  constexpr int kPauses = 32;  // between two looks at the clock
  if (spin) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < kPauses; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

struct ThreadPool::Impl {
  int num_threads = 1;
  PieceRunner runner;
  std::vector<std::thread> workers;
  bool spin = false;  // with more threads than CPUs, who spins keeps another from working
  bool stopping = false;
  int64_t count = 0;
  int pieces = 1;
  const std::function<void(int64_t, int64_t, int)>* body = nullptr;
  std::atomic<uint32_t> generation = 0;  // raised when the four values above are set
  std::atomic<int32_t> running = 0;      // workers that have not finished this generation

  void work(int thread) {
    flush_denormals();
    inside_loop = true;
    for (uint32_t seen = 0;; ++seen) {
      wait_for_change(generation, seen, spin);
      if (stopping) return;
      if (thread < pieces) {
        (*body)(piece_begin(count, pieces, thread), piece_begin(count, pieces, thread + 1), thread);
      }
      if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
    }
  }

  void start() {
    running.store(static_cast<int32_t>(workers.size()), std::memory_order_relaxed);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
  }

  void wait_until_done() {
    for (int32_t left = running.load(std::memory_order_acquire); left != 0;
         left = running.load(std::memory_order_acquire)) {
      wait_for_change(running, left, spin);
    }
  }

  void stop() {
    stopping = true;
    start();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  impl_->num_threads = std::max(1, num_threads);
  impl_->spin = num_threads <= available_threads();
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
  impl_->count = count;
  impl_->pieces = pieces;
  impl_->body = &body;
  impl_->start();
  inside_loop = true;
  body(0, piece_begin(count, pieces, 1), 0);
  inside_loop = false;
  impl_->wait_until_done();
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
