#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "mixers/mixer.h"

namespace tarn::runtime {

struct CrossoverOptions {
  int64_t num_heads = 8, key_dim = 64, value_dim = 64;
  int64_t batch = 16;
  int64_t repeats = 7;
  std::vector<int64_t> tokens;  ///< positions to measure at, ascending
  std::function<void(int64_t done, int64_t total)> progress;
  const std::atomic<bool>* cancel = nullptr;  ///< as in OperatorBenchOptions
};

struct CrossoverPoint {
  int64_t tokens = 0;
  int64_t bounded_bytes = 0, growing_bytes = 0;  ///< state of one sequence
  double bounded_ms = 0, growing_ms = 0;         ///< one step of the batch, median
};

struct CrossoverResult {
  /// From the state tables: the number of tokens at which the growing state is as large as the
  /// bounded one; (K·V + K)/(K + V) for linear attention against a key-value cache.
  double predicted_tokens = 0;
  /// From the measured points: where memory and time of the growing state pass the bounded ones
  /// for good, by straight lines between points; -1 where they never do, the first point where they
  /// do everywhere.
  double memory_tokens = -1, time_tokens = -1;
  std::vector<CrossoverPoint> points;
};

/// Compares one decoding step with a state of fixed size and one with a state that grows with every
/// token, at the same head sizes. Both are checked against their double-precision reference first.
/// Errors: kInvalidArgument when `bounded` grows or `growing` does not; those of bench_operator.
Result<CrossoverResult> measure_crossover(const mixers::MixerDef& bounded,
                                          const mixers::MixerDef& growing,
                                          const CrossoverOptions& options, ThreadPool* pool);

/// Where `growing` passes `bounded` for good over `tokens` (see CrossoverResult). Pure.
double crossing(const std::vector<int64_t>& tokens, const std::vector<double>& bounded,
                const std::vector<double>& growing);

}  // namespace tarn::runtime
