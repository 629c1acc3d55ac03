#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/dataset.h"
#include "train/config.h"

namespace tarn::train {

/// A dense batch: row b·length + t has input token t − 1 (the start token at t = 0) and target
/// token t, or kNotCounted. Or a packed one over frames: sequence i has the next lengths[i] rows.
struct Batch {
  int64_t count = 0;
  int64_t length = 0;   ///< of every sequence; 0: packed
  int64_t counted = 0;  ///< targets or labels that count in the loss
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
  // Packed:
  std::vector<int64_t> lengths;
  std::vector<float> frames;                 ///< [rows, input_width]
  std::vector<std::vector<int32_t>> labels;  ///< of every sequence

  bool is_packed() const { return !lengths.empty(); }
  int64_t rows() const;
};

/// Batches of a data set. Which sequences batch `update` has is a pure function of (seed, update):
/// passes over the data in the order of data::epoch_order, the last incomplete batch of each pass
/// left out.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// The batch of training update `update`.
  const Batch& training_batch(int64_t update);
  /// Sequences [first, first + count) in file order, for evaluation.
  const Batch& plain_batch(int64_t first, int64_t count);

  int64_t sequences() const { return sequences_; }
  int64_t batches_per_epoch() const { return sequences_ / batch_size_; }
  /// Rows of a sequence; on average, where they differ.
  virtual double rows_per_sequence() const = 0;
  /// Names of labels 1, 2, … over frames.
  virtual std::vector<std::string> symbols() const { return {}; }

 protected:
  BatchSource(int64_t sequences, const TrainingConfig& training)
      : sequences_(sequences), batch_size_(training.batch_size), seed_(training.seed) {}

  virtual void clear(Batch& batch) const = 0;
  /// Appends sequence `index` of pass `epoch` (-1: for evaluation) to a batch.
  virtual void add(int64_t epoch, int64_t index, Batch& batch) = 0;

 private:
  int64_t sequences_;
  int64_t batch_size_;
  uint64_t seed_;
  int64_t epoch_ = -1;  ///< the pass that order_ belongs to
  std::vector<int32_t> order_;
  Batch batch_;
};

/// Loads a split of the config's data. Errors: those of data::load and data::load_frames; over frames a
/// head with another number of classes than there are labels and the blank, a sequence longer than
/// max_tokens.
Result<std::unique_ptr<BatchSource>> open_batches(const TrainConfig& config,
                                                  const std::string& directory, data::Split split);

}  // namespace tarn::train
