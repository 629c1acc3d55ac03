#include "runtime/streaming_recogniser.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tarn::runtime {

Result<StreamingRecogniser> StreamingRecogniser::open(std::shared_ptr<const model::Model> model,
                                                      ThreadPool* pool) {
  if (model->config().modality != model::Modality::kFrames) {
    return Error{ErrorCode::kUnsupported, "the model is over symbols, wanted one over frames",
                 "modality"};
  }
  TARN_RETURN_IF_ERROR(check_layers_causal(*model));
  return StreamingRecogniser(std::move(model), pool);
}

StreamingRecogniser::StreamingRecogniser(std::shared_ptr<const model::Model> model,
                                         ThreadPool* pool)
    : model_(std::move(model)),
      pool_(pool),
      state_(model_),
      bound_(*model_),
      path_(model_->config().head.classes) {}

void StreamingRecogniser::reset() {
  state_.reset();
  path_ = CtcPath(model_->config().head.classes);
  waiting_.clear();
}

Status StreamingRecogniser::push(std::span<const float> frames) {
  const model::ModelConfig& config = model_->config();
  const auto size = static_cast<int64_t>(frames.size());
  if (size % config.frame_features != 0) {
    return invalid_argument("got " + std::to_string(size) + " numbers, wanted a multiple of the " +
                            std::to_string(config.frame_features) + " features");
  }
  waiting_.insert(waiting_.end(), frames.begin(), frames.end());
  const int64_t rows = static_cast<int64_t>(waiting_.size()) / config.input_width();
  for (int64_t done = 0; done < rows; done += kMaxPieceRows) {
    TARN_RETURN_IF_ERROR(
        hear(waiting_.data() + done * config.input_width(), std::min(kMaxPieceRows, rows - done)));
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + rows * config.input_width());
  return {};
}

Status StreamingRecogniser::finish() {
  if (waiting_.empty()) return {};
  waiting_.resize(static_cast<size_t>(model_->config().input_width()), 0.0f);
  TARN_RETURN_IF_ERROR(hear(waiting_.data(), 1));
  waiting_.clear();
  return {};
}

Status StreamingRecogniser::hear(const float* frames, int64_t rows) {
  const int64_t begin = 0;
  const int64_t position = state_.position();
  TARN_RETURN_IF_ERROR(state_.reserve(position + rows));
  SequenceState* const states[] = {&state_};
  bound_.bind(states);
  model::TokenBatch batch;
  batch.sequences = {1, &begin, &rows};
  batch.positions = &position;
  batch.frames = frames;
  outputs_.resize(static_cast<size_t>(rows * model_->config().head.output_dim()));
  model_->forward(batch, bound_.layers(), mixers::Form::kAuto, model::Outputs::kAllRows,
                  outputs_.data(), pool_, arena_);
  state_.set_position(position + rows);
  if (!std::ranges::all_of(outputs_, [](float value) { return std::isfinite(value); })) {
    return corrupt("the model's outputs are not finite", "row " + std::to_string(position));
  }
  path_.push(rows, outputs_.data());
  return {};
}

}  // namespace tarn::runtime
