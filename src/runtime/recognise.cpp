#include "runtime/recognise.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/arena.h"
#include "runtime/ctc.h"
#include "runtime/streaming_recogniser.h"

namespace tarn::runtime {
namespace {

Status check_utterances(const model::ModelConfig& config,
                        std::span<const std::vector<float>> utterances) {
  if (config.modality != model::Modality::kFrames) {
    return Error{ErrorCode::kUnsupported, "the model is over symbols, wanted one over frames",
                 "modality"};
  }
  for (size_t i = 0; i < utterances.size(); ++i) {
    const std::string where = "utterance " + std::to_string(i);
    const auto size = static_cast<int64_t>(utterances[i].size());
    if (size % config.frame_features != 0) {
      return invalid_argument("has " + std::to_string(size) +
                                  " numbers, wanted a multiple of the " +
                                  std::to_string(config.frame_features) + " features",
                              where);
    }
    const int64_t rows = config.input_rows(size / config.frame_features);
    if (config.max_tokens > 0 && rows > config.max_tokens) {
      return invalid_argument("has " + std::to_string(rows) + " rows, the model takes at most " +
                                  std::to_string(config.max_tokens),
                              where);
    }
  }
  return {};
}

/// Head outputs of one utterance.
std::vector<float> outputs_of(const model::Model& model, std::vector<float> frames,
                              ThreadPool* pool, Arena& arena) {
  const model::ModelConfig& config = model.config();
  const int64_t begin = 0;
  const int64_t rows =
      config.input_rows(static_cast<int64_t>(frames.size()) / config.frame_features);
  frames.resize(static_cast<size_t>(rows * config.input_width()), 0.0f);
  std::vector<float> outputs(static_cast<size_t>(rows * config.head.output_dim()));
  model::TokenBatch batch;
  batch.sequences = {1, &begin, &rows};
  batch.frames = frames.data();
  model.forward(batch, {}, mixers::Form::kAuto, model::Outputs::kAllRows, outputs.data(), pool,
                arena);
  return outputs;
}

std::vector<int32_t> decoded(int64_t rows, int64_t classes, const float* logits, int64_t beam) {
  if (beam == 0) return ctc_greedy(rows, classes, logits);
  return ctc_prefix_beam(rows, classes, logits, beam)[0].labels;
}

Result<std::vector<int32_t>> streamed(StreamingRecogniser& recogniser,
                                      std::span<const float> frames, int64_t piece) {
  recogniser.reset();
  while (!frames.empty()) {
    const size_t size = std::min(frames.size(), static_cast<size_t>(piece));
    TARN_RETURN_IF_ERROR(recogniser.push(frames.first(size)));
    frames = frames.subspan(size);
  }
  TARN_RETURN_IF_ERROR(recogniser.finish());
  return recogniser.labels();
}

}  // namespace

Result<std::vector<std::vector<int32_t>>> recognise(std::shared_ptr<const model::Model> model,
                                                    std::span<const std::vector<float>> utterances,
                                                    const RecogniseOptions& options,
                                                    ThreadPool* pool) {
  const model::ModelConfig& config = model->config();
  TARN_RETURN_IF_ERROR(check_utterances(config, utterances));
  if (options.stream > 0 && options.beam > 0) {
    return invalid_argument("a stream follows the most probable path, not a beam");
  }
  std::optional<StreamingRecogniser> recogniser;
  if (options.stream > 0) {
    TARN_ASSIGN(StreamingRecogniser opened, StreamingRecogniser::open(model, pool));
    recogniser.emplace(std::move(opened));
  }
  std::vector<std::vector<int32_t>> heard;
  Arena arena;
  for (size_t i = 0; i < utterances.size(); ++i) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "recognition was stopped on request", {}};
    }
    if (recogniser) {
      TARN_ASSIGN(std::vector<int32_t> labels,
                  streamed(*recogniser, utterances[i], options.stream * config.frame_features));
      heard.push_back(std::move(labels));
    } else {
      const std::vector<float> outputs = outputs_of(*model, utterances[i], pool, arena);
      if (!std::ranges::all_of(outputs, [](float value) { return std::isfinite(value); })) {
        return corrupt("the model's outputs are not finite", "utterance " + std::to_string(i));
      }
      const int64_t rows = static_cast<int64_t>(outputs.size()) / config.head.classes;
      heard.push_back(decoded(rows, config.head.classes, outputs.data(), options.beam));
    }
    if (options.progress) {
      options.progress(static_cast<int64_t>(i) + 1, static_cast<int64_t>(utterances.size()));
    }
  }
  return heard;
}

}  // namespace tarn::runtime
