#include "train/batches.h"

#include <numeric>
#include <utility>

#include "train/frame_batches.h"
#include "train/loss.h"

namespace tarn::train {
namespace {

class TokenBatches final : public BatchSource {
 public:
  TokenBatches(data::SequenceDataset dataset, int64_t start_token, const TrainingConfig& training)
      : BatchSource(dataset.count, training),
        dataset_(std::move(dataset)),
        start_token_(static_cast<int32_t>(start_token)),
        tokens_(static_cast<size_t>(dataset_.length)),
        counted_(static_cast<size_t>(dataset_.length)) {}

  double rows_per_sequence() const override { return static_cast<double>(dataset_.length); }

 private:
  void clear(Batch& batch) const override {
    batch = Batch();
    batch.length = dataset_.length;
  }

  void add(int64_t epoch, int64_t index, Batch& batch) override {
    dataset_.sequence(std::max<int64_t>(0, epoch), index, tokens_.data(), counted_.data());
    int32_t previous = start_token_;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      batch.inputs.push_back(previous);
      previous = tokens_[t];
      batch.targets.push_back(counted_[t] != 0 ? previous : kNotCounted);
      batch.counted += counted_[t];
    }
    ++batch.count;
  }

  data::SequenceDataset dataset_;
  int32_t start_token_;
  std::vector<uint8_t> tokens_, counted_;
};

}  // namespace

int64_t Batch::rows() const {
  return is_packed() ? std::reduce(lengths.begin(), lengths.end()) : count * length;
}

const Batch& BatchSource::training_batch(int64_t update) {
  const int64_t epoch = update / batches_per_epoch();
  const int64_t first = update % batches_per_epoch() * batch_size_;
  if (epoch != epoch_) {
    order_ = data::epoch_order(sequences_, seed_, epoch);
    epoch_ = epoch;
  }
  clear(batch_);
  for (int64_t i = 0; i < batch_size_; ++i) {
    add(epoch, order_[static_cast<size_t>(first + i)], batch_);
  }
  return batch_;
}

const Batch& BatchSource::plain_batch(int64_t first, int64_t count) {
  clear(batch_);
  for (int64_t i = 0; i < count; ++i) add(-1, first + i, batch_);
  return batch_;
}

Result<std::unique_ptr<BatchSource>> open_batches(const TrainConfig& config,
                                                  const std::string& directory, data::Split split) {
  if (data::is_frames(config.data.kind)) return open_frame_batches(config, directory, split);
  TARN_ASSIGN(data::SequenceDataset dataset,
              data::load(config.data, directory, split, config.training.seed));
  return std::unique_ptr<BatchSource>(std::make_unique<TokenBatches>(
      std::move(dataset), config.model.start_token, config.training));
}

}  // namespace tarn::train
