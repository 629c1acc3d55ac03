#include "train/frame_batches.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"

namespace tarn::train {
namespace {

constexpr uint64_t kMaskStream = uint64_t{4} << 56;  // far from those of the data sets

class FrameBatches final : public BatchSource {
 public:
  FrameBatches(data::FrameDataset dataset, const TrainConfig& config)
      : BatchSource(dataset.count(), config.training),
        dataset_(std::move(dataset)),
        model_(config.model),
        training_(config.training) {}

  double rows_per_sequence() const override {
    int64_t rows = 0;
    for (int64_t i = 0; i < dataset_.count(); ++i) rows += model_.input_rows(dataset_.length(i));
    return static_cast<double>(rows) / static_cast<double>(dataset_.count());
  }

  std::vector<std::string> symbols() const override { return dataset_.symbols; }

 private:
  void clear(Batch& batch) const override { batch = Batch(); }

  void add(int64_t epoch, int64_t index, Batch& batch) override {
    const data::Utterance& utterance = dataset_.utterances[static_cast<size_t>(index)];
    frames_ = utterance.frames;
    if (epoch >= 0) {
      const auto number = static_cast<uint64_t>(epoch * dataset_.count() + index);
      mask_frames(training_.augment, dataset_.channels, dataset_.features, training_.seed,
                  kMaskStream + number, frames_);
    }
    const int64_t rows = model_.input_rows(dataset_.length(index));
    frames_.resize(static_cast<size_t>(rows * model_.input_width()), 0.0f);
    batch.frames.insert(batch.frames.end(), frames_.begin(), frames_.end());
    batch.lengths.push_back(rows);
    batch.labels.push_back(utterance.labels);
    batch.counted += static_cast<int64_t>(utterance.labels.size());
    ++batch.count;
  }

  data::FrameDataset dataset_;
  const model::ModelConfig& model_;
  const TrainingConfig& training_;
  std::vector<float> frames_;
};

Status check_dataset(const data::FrameDataset& dataset, const model::ModelConfig& model) {
  if (dataset.features != model.frame_features) {
    return invalid_argument("is " + std::to_string(model.frame_features) +
                                ", but the data has frames of " + std::to_string(dataset.features) +
                                " numbers",
                            "model.frames.features");
  }
  const auto classes = static_cast<int64_t>(dataset.symbols.size()) + 1;
  if (classes != model.head.classes) {
    return invalid_argument("is " + std::to_string(model.head.classes) + ", but the data has " +
                                std::to_string(classes) + " labels, the blank included",
                            "model.head.classes");
  }
  for (int64_t i = 0; i < dataset.count(); ++i) {
    const int64_t rows = model.input_rows(dataset.length(i));
    if (model.max_tokens == 0 || rows <= model.max_tokens) continue;
    return invalid_argument("is " + std::to_string(model.max_tokens) + ", but utterance \"" +
                                dataset.utterances[static_cast<size_t>(i)].name + "\" has " +
                                std::to_string(rows) + " rows",
                            "model.max_tokens");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<BatchSource>> open_frame_batches(const TrainConfig& config,
                                                        const std::string& directory,
                                                        data::Split split) {
  TARN_ASSIGN(data::FrameDataset dataset,
              data::load_frames(config.data, directory, split,
                                {config.model.frontend, config.model.head.symbols}));
  TARN_RETURN_IF_ERROR(check_dataset(dataset, config.model));
  return std::unique_ptr<BatchSource>(std::make_unique<FrameBatches>(std::move(dataset), config));
}

void mask_frames(const AugmentConfig& augment, int64_t channels, int64_t features, uint64_t seed,
                 uint64_t stream, std::vector<float>& frames) {
  const int64_t length = static_cast<int64_t>(frames.size()) / features;
  Philox random{seed, stream};
  const auto below = [&random](int64_t bound) {
    return static_cast<int64_t>(random.next_below(static_cast<uint32_t>(bound)));
  };
  const auto widest = static_cast<int64_t>(augment.time_share * static_cast<double>(length));
  for (int64_t mask = 0; mask < augment.time_masks; ++mask) {
    const int64_t width = below(widest + 1);
    const int64_t first = below(length - width + 1);
    std::fill_n(frames.begin() + first * features, width * features, 0.0f);
  }
  for (int64_t mask = 0; mask < augment.feature_masks; ++mask) {
    const int64_t width = below(std::min(augment.feature_width, channels) + 1);
    const int64_t first = below(channels - width + 1);
    for (int64_t group = first; group < length * features; group += channels) {
      std::fill_n(frames.begin() + group, width, 0.0f);
    }
  }
}

}  // namespace tarn::train
