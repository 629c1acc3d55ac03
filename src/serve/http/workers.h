#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tarn::serve::http {

/// A fixed number of threads that run jobs in the order they came; jobs must not throw.
/// Threads: any.
class Workers {
 public:
  using Job = std::function<void()>;

  /// Throws what std::thread throws.
  Workers(int threads, int64_t max_queued);
  /// Drops what is queued and waits for what runs.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// False when no worker is free and the queue is full, or after stop().
  bool submit(Job job);
  void stop();

 private:
  void run();

  const int64_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  int64_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tarn::serve::http
