#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/part_times.h"
#include "base/result.h"
#include "base/threads.h"
#include "train/batches.h"
#include "train/config.h"

namespace tarn::train {

struct StepBenchOptions {
  int64_t steps = 10;                      ///< timed
  int64_t warm_up = 2;                     ///< before them
  const std::atomic<int>* stop = nullptr;  ///< set by a signal handler: an error after this step
};

/// What updates of a config cost on this machine.
struct StepBenchResult {
  int64_t batch = 0;
  int64_t tokens = 0;  ///< per sequence
  int threads = 1;
  DType precision = DType::kF32;
  std::vector<double> step_ms;
  /// Over all timed steps; the last one, "other", is what no part claims, so that they add up.
  std::vector<PartTimes::Part> parts;
  double f32_flops_per_second = 0.0;   ///< limit of this machine with these threads
  double bf16_flops_per_second = 0.0;  ///< 0: no dot products of bf16
  double first_bits = 0.0;             ///< mean loss of the first and of the last step
  double last_bits = 0.0;

  double median_ms() const;
  double tokens_per_second() const;  ///< of the median step
};

/// Runs updates on the batches of `next` (the update's number, from 0) from initial weights, timed
/// part by part, after measuring the machine's limits (about 0.1 s). A step that is not finite is an
/// error, so no wrong step is timed.
Result<StepBenchResult> bench_steps(const TrainConfig& config,
                                    const std::function<const Batch&(int64_t)>& next,
                                    const StepBenchOptions& options, ThreadPool* pool);

/// A batch of random symbols that the config's model could be trained on.
Batch random_batch(const model::ModelConfig& model, int64_t count, int64_t length, uint64_t seed);

/// {"batch", "tokens", "threads", "precision", "steps", "tokens_per_second", "ms_per_step": {median,
/// min, max}, "roof", "parts": […]}.
Json to_json(const StepBenchResult& result);
/// The same as a table for people.
std::string to_text(const StepBenchResult& result);

}  // namespace tarn::train
