#include "runtime/transcriber.h"

#include <utility>

namespace tarn::runtime {

Result<audio::FrontendConfig> frontend_of(const model::ModelConfig& config) {
  if (config.frontend) return *config.frontend;
  return Error{ErrorCode::kUnsupported, "the model does not say how sound becomes its input",
               "frontend"};
}

Result<Transcriber> Transcriber::open(std::shared_ptr<const model::Model> model, ThreadPool* pool) {
  TARN_ASSIGN(const audio::FrontendConfig config, frontend_of(model->config()));
  if (config.normalisation == audio::NormalisationKind::kSpeaker) {
    return Error{
        ErrorCode::kUnsupported,
        "frames are normalised over all that a speaker says, which a stream has not heard yet",
        "frontend.normalisation"};
  }
  TARN_ASSIGN(StreamingRecogniser recogniser, StreamingRecogniser::open(std::move(model), pool));
  return Transcriber(audio::Frontend(config), std::move(recogniser));
}

Transcriber::Transcriber(audio::Frontend frontend, StreamingRecogniser recogniser)
    : frontend_(std::move(frontend)), recogniser_(std::move(recogniser)) {}

Status Transcriber::push(std::span<const float> samples) {
  frames_.clear();
  frontend_.push(samples, frames_);
  return recogniser_.push(frames_);
}

Status Transcriber::finish() {
  frames_.clear();
  frontend_.finish(frames_);
  TARN_RETURN_IF_ERROR(recogniser_.push(frames_));
  return recogniser_.finish();
}

void Transcriber::reset() {
  frontend_.reset();
  recogniser_.reset();
}

}  // namespace tarn::runtime
