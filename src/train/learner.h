#pragma once

#include <cstdint>

#include "base/buffer.h"
#include "base/part_times.h"
#include "base/threads.h"
#include "train/batches.h"
#include "train/config.h"
#include "train/decoder.h"
#include "train/optimiser.h"
#include "train/parameters.h"

namespace tarn::train {

/// What training changes: parameters, optimiser, running mean of the weights; and one update of it.
class Learner {
 public:
  struct Outcome {
    double nats = 0.0;           ///< sum over what counts in the batch
    double gradient_norm = 0.0;  ///< before clipping
    bool applied = false;        ///< false: loss or gradient is not finite, nothing was changed
  };

  /// `config` and `pool` must outlive the learner; `times` (nullable) learns where updates spend
  /// their time.
  Learner(const TrainConfig& config, ThreadPool* pool, PartTimes* times = nullptr);
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  /// Update number `update` (from 0): gradient of the mean loss of `batch`, clipping, optimiser,
  /// running mean.
  Outcome learn(const Batch& batch, int64_t update);
  Evaluation evaluate(const Batch& batch) const { return decoder_.evaluate(batch); }
  /// Exchanges the weights and their running mean, where there is one: before and after evaluations.
  void swap_average();

  ParameterBuffers& parameters() { return parameters_; }
  Optimiser& optimiser() { return optimiser_; }
  Buffer<float>& average() { return average_; }  ///< empty when none is wanted
  /// The weights that will be exported: the running mean where there is one.
  const Buffer<float>& exported() const {
    return average_.size() > 0 ? average_ : parameters_.values;
  }

 private:
  const TrainConfig& config_;
  ThreadPool* pool_;
  PartTimes* times_;
  ParameterBuffers parameters_;
  Optimiser optimiser_;
  Buffer<float> average_;
  Decoder decoder_;
};

}  // namespace tarn::train
