#include "cli/eval_frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/json_override.h"
#include "cli/prompt_stop.h"
#include "cli/speller.h"
#include "data/frames.h"
#include "runtime/edit_distance.h"
#include "runtime/recognise.h"

namespace tarn::cli {
namespace {

Result<data::FrameDataset> load(const model::ModelConfig& config, const FramesEvaluation& options) {
  TARN_ASSIGN(const data::Split split, data::split_from_name(options.split, "--split"));
  data::DataSpec spec;
  spec.kind = config.frontend ? data::DataKind::kAudio : data::DataKind::kAn4Mfcc;
  Json json = Json::Object{{"data", data::to_json(spec)}};
  for (const std::string& assignment : options.overrides) {
    TARN_RETURN_IF_ERROR(apply_override(json, assignment));
  }
  TARN_ASSIGN(spec, data::parse_data_spec(*json.find("data"), "--set"));
  if (!data::is_frames(spec.kind)) {
    return invalid_argument("the model is over frames, wanted data of frames", "--set");
  }
  TARN_ASSIGN(data::FrameDataset dataset,
              data::load_frames(spec, options.data, split, {config.frontend, config.head.symbols}));
  if (dataset.features != config.frame_features) {
    return invalid_argument(fmt::format("frames have {} numbers, the model takes {}",
                                        dataset.features, config.frame_features),
                            options.data);
  }
  if (!config.head.symbols.empty() && config.head.symbols != dataset.symbols) {
    return invalid_argument("the labels are not those of the model", options.data);
  }
  if (options.limit > 0 && options.limit < dataset.count()) {
    dataset.utterances.resize(static_cast<size_t>(options.limit));
  }
  return dataset;
}

struct Outcome {
  runtime::EditCounts edits;
  int64_t frames = 0;
  double seconds = 0.0;
  /// Seconds of work per second of speech.
  double real_time_factor(int64_t frame_rate) const {
    return seconds * static_cast<double>(frame_rate) / static_cast<double>(frames);
  }
};

void print(const data::FrameDataset& dataset, const std::vector<std::vector<int32_t>>& heard,
           const Outcome& outcome, const FramesEvaluation& options, Console& console) {
  const runtime::EditCounts& edits = outcome.edits;
  const std::string label = data::label_name(dataset.spec);
  Json json;
  json.set(label + "_error_rate", edits.rate());
  json.set("substitutions", edits.substitutions);
  json.set("insertions", edits.insertions);
  json.set("deletions", edits.deletions);
  json.set(label + "s", edits.reference);
  json.set("count", dataset.count());
  json.set("frames", outcome.frames);
  json.set("seconds", outcome.seconds);
  json.set("real_time_factor", outcome.real_time_factor(dataset.frame_rate));
  json.set("beam", options.beam);
  json.set("stream", options.stream);
  json.set("split", options.split);
  json.set("threads", options.threads);
  Json::Array transcripts;
  for (size_t i = 0; i < heard.size(); ++i) {
    const data::Utterance& utterance = dataset.utterances[i];
    const std::string said = Speller(dataset.symbols).spell(utterance.labels);
    const std::string recognised = Speller(dataset.symbols).spell(heard[i]);
    transcripts.push_back(
        Json::Object{{"name", utterance.name}, {"said", said}, {"heard", recognised}});
    if (!options.transcripts) continue;
    console.text(fmt::format("{}\n  said   {}\n  heard  {}", utterance.name, said, recognised));
  }
  json.set("transcripts", std::move(transcripts));
  console.document(json);
  console.table(
      {{label + "_error_rate", fmt::format("{:.4f}", edits.rate())},
       {"substitutions", std::to_string(edits.substitutions)},
       {"insertions", std::to_string(edits.insertions)},
       {"deletions", std::to_string(edits.deletions)},
       {label + "s", std::to_string(edits.reference)},
       {"utterances", std::to_string(dataset.count())},
       {"frames", std::to_string(outcome.frames)},
       {"real-time factor", fmt::format("{:.4f}", outcome.real_time_factor(dataset.frame_rate))},
       {"seconds", fmt::format("{:.2f}", outcome.seconds)}});
}

}  // namespace

Status eval_frames(std::shared_ptr<const model::Model> model, const FramesEvaluation& options,
                   Context& context) {
  TARN_ASSIGN(const data::FrameDataset dataset, load(model->config(), options));
  std::vector<std::vector<float>> frames;
  Outcome outcome;
  for (const data::Utterance& utterance : dataset.utterances) {
    frames.push_back(utterance.frames);
    outcome.frames += static_cast<int64_t>(utterance.frames.size()) / dataset.features;
  }
  runtime::RecogniseOptions recognition;
  recognition.beam = options.beam;
  recognition.stream = options.stream;
  recognition.cancel = &context.cancel;
  recognition.progress = [&](int64_t done, int64_t total) {
    context.console.progress("eval", done, total, "utterances");
  };
  ThreadPool pool(static_cast<int>(options.threads));
  const PromptStop prompt(context);
  const auto start = std::chrono::steady_clock::now();
  TARN_ASSIGN(const auto heard, runtime::recognise(model, frames, recognition, &pool));
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  context.console.end_progress();
  for (size_t i = 0; i < heard.size(); ++i) {
    outcome.edits += runtime::edit_distance(dataset.utterances[i].labels, heard[i]);
  }
  print(dataset, heard, outcome, options, context.console);
  return {};
}

}  // namespace tarn::cli
