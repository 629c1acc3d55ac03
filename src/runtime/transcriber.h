#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "audio/frontend.h"
#include "base/result.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/streaming_recogniser.h"

namespace tarn::runtime {

/// Hears sound while it is spoken: the model's front end and a StreamingRecogniser behind it. Frames have
/// the same bits however the sound is cut. Memory does not grow with the sound, if labels are taken and the
/// model's states are bounded. Threads: one owner at a time.
class Transcriber {
 public:
  /// `pool` may be null; it outlives the transcriber. Errors: those of StreamingRecogniser::open; a model
  /// without a front end, or whose front end must have heard the speaker to the end.
  static Result<Transcriber> open(std::shared_ptr<const model::Model> model, ThreadPool* pool);

  /// The next samples, finite, of the front end's rate. Errors: those of StreamingRecogniser::push.
  Status push(std::span<const float> samples);
  /// The sound is over.
  Status finish();
  /// The labels since the last call.
  std::vector<int32_t> take_labels() { return recogniser_.take_labels(); }
  /// Begins other sound.
  void reset();

 private:
  Transcriber(audio::Frontend frontend, StreamingRecogniser recogniser);

  audio::Frontend frontend_;
  StreamingRecogniser recogniser_;
  std::vector<float> frames_;
};

/// The model's front end. Errors: a model over symbols, or over frames that are no sound.
Result<audio::FrontendConfig> frontend_of(const model::ModelConfig& config);

}  // namespace tarn::runtime
