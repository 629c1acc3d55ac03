#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace tarn::train {

/// A dense batch: row b·length + t has input token t − 1 (the start token at t = 0) and target
/// token t, or kNotCounted.
struct Batch {
  int64_t count = 0;
  int64_t length = 0;
  int64_t counted = 0;  ///< targets that count in the loss
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

/// Batches of a data set. Which sequences batch `update` has is a pure function of (seed, update):
/// passes over the data in the order of data::epoch_order, the last incomplete batch of each pass
/// left out.
class BatchSource {
 public:
  BatchSource(const data::SequenceDataset& dataset, int64_t batch_size, int64_t start_token,
              uint64_t seed);

  /// The batch of training update `update`.
  const Batch& training_batch(int64_t update);
  /// Sequences [first, first + count) in file order, for evaluation.
  const Batch& plain_batch(int64_t first, int64_t count);
  int64_t batches_per_epoch() const { return dataset_.count / batch_size_; }

 private:
  void add(int64_t epoch, int64_t index);

  const data::SequenceDataset& dataset_;
  int64_t batch_size_;
  int32_t start_token_;
  uint64_t seed_;
  int64_t epoch_ = -1;  ///< the pass that order_ belongs to
  std::vector<int32_t> order_;
  std::vector<uint8_t> tokens_, counted_;
  Batch batch_;
};

}  // namespace tarn::train
