#include "serve/http/workers.h"

#include <utility>

namespace tarn::serve::http {

Workers::Workers(int threads, int64_t max_queued) : max_queued_(max_queued) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
  } catch (...) {
    stop();
    throw;
  }
}

Workers::~Workers() { stop(); }

bool Workers::submit(Job job) {
  {
    std::lock_guard lock(mutex_);
    const auto queued = static_cast<int64_t>(queue_.size());
    // A job for an idle worker does not wait, whatever the limit.
    if (stopping_ || queued >= idle_ + max_queued_) return false;
    queue_.push_back(std::move(job));
  }
  changed_.notify_one();
  return true;
}

void Workers::stop() {
  std::deque<Job> dropped;  // destroyed outside the lock
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(queue_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (stopping_) return;
    {
      const Job job = std::exchange(queue_.front(), nullptr);
      queue_.pop_front();
      lock.unlock();
      job();
    }  // what the job held goes before the lock comes back
    lock.lock();
  }
}

}  // namespace tarn::serve::http
