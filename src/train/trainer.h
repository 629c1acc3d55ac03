#pragma once

#include <atomic>
#include <string>

#include "base/result.h"
#include "base/threads.h"
#include "train/config.h"
#include "train/step_bench.h"

namespace tarn::train {

struct TrainOptions {
  std::string data_directory;
  std::string out_directory;
  bool resume = false;
  bool json = false;  ///< events also on stdout
  /// Set by someone else (a signal handler): finish the update, save a checkpoint and return.
  const std::atomic<int>* stop = nullptr;
};

struct TrainResult {
  bool stopped = false;  ///< on request, before the last update
  int64_t updates = 0;
  double train_bits = 0.0;  ///< bits per counted token, mean since the last log line
  double valid_bits = 0.0;  ///< of the last evaluation; negative when there was none
  double seconds = 0.0;
};

/// Trains the config's model and writes out_directory: config.json and model.safetensors (a model
/// folder, refreshed at every checkpoint), training.json (the whole config), log.jsonl and
/// checkpoint/state.safetensors. With `resume` it continues the checkpoint there, bit for bit as
/// if it had never stopped (same build, any number of threads), or starts when there is none; without,
/// a folder that already holds a checkpoint is refused. An update whose loss or gradient is not
/// finite is skipped; ten in a row are an error.
Result<TrainResult> train(const TrainConfig& config, const TrainOptions& options, ThreadPool* pool);

/// Times updates of the config on its own data, part by part (step_bench.h); writes nothing.
Result<StepBenchResult> profile_training(const TrainConfig& config,
                                         const std::string& data_directory,
                                         const StepBenchOptions& options, ThreadPool* pool);

}  // namespace tarn::train
