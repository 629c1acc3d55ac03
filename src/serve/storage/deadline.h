#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "serve/store.h"

namespace tarn::serve {

/// The end of one call of a store, whatever it waits for: StoreOptions::busy_timeout_ms from here.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Passed already.
  Deadline() = default;
  explicit Deadline(const StoreOptions& options)
      : limit_ms_(options.busy_timeout_ms),
        at_(Clock::now() + std::chrono::milliseconds(options.busy_timeout_ms)) {}

  Clock::time_point at() const { return at_; }
  int64_t limit_ms() const { return limit_ms_; }
  /// What is left in whole milliseconds, rounded up and at most a day; 0: it has passed.
  int64_t left_ms() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now());
    return std::clamp<int64_t>(left.count(), 0, 86'400'000);
  }
  bool passed() const { return left_ms() == 0; }
  /// The error of a call that came here, e.g. "Redis did not answer".
  Error error(const std::string& what) const {
    return {ErrorCode::kIo, what + " within " + std::to_string(limit_ms_) + " ms", "store"};
  }

 private:
  int64_t limit_ms_ = 0;
  Clock::time_point at_{};
};

/// A mutex for which one waits up to a deadline. (std::timed_mutex is waited for on the steady clock
/// with a call that ThreadSanitizer does not know.)
class Turn {
 public:
  /// False: the deadline came first.
  bool take(const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.at(), [this] { return !taken_; })) return false;
    taken_ = true;
    return true;
  }
  void give_back() {
    {
      const std::lock_guard lock(mutex_);
      taken_ = false;
    }
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool taken_ = false;
};

/// Gives a turn that was taken back at the end of the scope.
class TurnGuard {
 public:
  explicit TurnGuard(Turn& turn) : turn_(turn) {}
  TurnGuard(const TurnGuard&) = delete;
  TurnGuard& operator=(const TurnGuard&) = delete;
  ~TurnGuard() { turn_.give_back(); }

 private:
  Turn& turn_;
};

}  // namespace tarn::serve
