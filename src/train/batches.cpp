#include "train/batches.h"

#include "train/loss.h"

namespace tarn::train {

BatchSource::BatchSource(const data::SequenceDataset& dataset, int64_t batch_size,
                         int64_t start_token, uint64_t seed)
    : dataset_(dataset),
      batch_size_(batch_size),
      start_token_(static_cast<int32_t>(start_token)),
      seed_(seed),
      tokens_(static_cast<size_t>(dataset.length)),
      counted_(static_cast<size_t>(dataset.length)) {
  batch_.length = dataset.length;
}

void BatchSource::add(int64_t epoch, int64_t index) {
  dataset_.sequence(epoch, index, tokens_.data(), counted_.data());
  int32_t previous = start_token_;
  for (size_t t = 0; t < tokens_.size(); ++t) {
    batch_.inputs.push_back(previous);
    previous = tokens_[t];
    batch_.targets.push_back(counted_[t] != 0 ? previous : kNotCounted);
    batch_.counted += counted_[t];
  }
  ++batch_.count;
}

const Batch& BatchSource::training_batch(int64_t update) {
  const int64_t epoch = update / batches_per_epoch();
  const int64_t first = update % batches_per_epoch() * batch_size_;
  if (epoch != epoch_) {
    order_ = data::epoch_order(dataset_.count, seed_, epoch);
    epoch_ = epoch;
  }
  batch_ = {0, dataset_.length, 0, {}, {}};
  for (int64_t i = 0; i < batch_size_; ++i) add(epoch, order_[static_cast<size_t>(first + i)]);
  return batch_;
}

const Batch& BatchSource::plain_batch(int64_t first, int64_t count) {
  batch_ = {0, dataset_.length, 0, {}, {}};
  for (int64_t i = 0; i < count; ++i) add(0, first + i);
  return batch_;
}

}  // namespace tarn::train
