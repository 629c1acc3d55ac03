#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "serve/request.h"

namespace tarn::serve {

/// Counts of durations in fixed buckets. Threads: any; readers see each number whole, not all at
/// one moment.
class Histogram {
 public:
  static constexpr size_t kBuckets = 16;
  /// Upper limits in seconds, inclusive; larger values are in one more bucket.
  static std::span<const double, kBuckets> bounds();

  void observe(double seconds);
  /// Of bucket `bucket` alone, up to and including kBuckets.
  int64_t count(size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  int64_t total() const;
  double sum_seconds() const;

 private:
  std::array<std::atomic<int64_t>, kBuckets + 1> counts_{};
  std::atomic<int64_t> sum_nanoseconds_{0};
};

/// What an engine counts since it was made; gauges are marked. Threads: any.
struct Metrics {
  std::atomic<int64_t> requests{0};  ///< admitted
  std::atomic<int64_t> refused{0};
  std::array<std::atomic<int64_t>, kFinishReasons> finished{};  ///< by FinishReason
  std::atomic<int64_t> running{0};                              ///< gauge: turns in the rounds
  std::atomic<int64_t> waiting{0};                              ///< gauge: turns in the queue
  std::atomic<int64_t> prompt_tokens{0};  ///< evaluated before a turn's first draw
  std::atomic<int64_t> generated_tokens{0};
  std::atomic<int64_t> rounds{0};
  Histogram queue_time;           ///< from submit to the first round
  Histogram time_to_first_token;  ///< from submit
  Histogram inter_token_latency;  ///< between tokens of one turn
};

}  // namespace tarn::serve
