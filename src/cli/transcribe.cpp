#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "audio/sound_reader.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/prompt_stop.h"
#include "cli/speller.h"
#include "data/frames.h"
#include "runtime/process_memory.h"
#include "runtime/recognise.h"
#include "runtime/transcriber.h"

namespace tarn::cli {
namespace {

constexpr int64_t kDefaultChunkMs = 100;
constexpr int64_t kMaxSamples = int64_t{1} << 28;  // held at once without --stream

struct Options {
  ModelOptions model;
  std::vector<std::string> files;
  bool stream = false;
  int64_t chunk_ms = 0;
  int64_t beam = 0;
  std::string raw;
};

/// How much was heard, and how long that took without waiting for it.
struct Effort {
  int64_t samples = 0;
  double seconds = 0.0;

  Effort& operator+=(const Effort& other) {
    samples += other.samples;
    seconds += other.seconds;
    return *this;
  }
  double audio_seconds(int64_t rate) const {
    return static_cast<double>(samples) / static_cast<double>(rate);
  }
  /// Null when nothing was heard.
  Json real_time_factor(int64_t rate) const {
    return samples == 0 ? Json() : Json(seconds / audio_seconds(rate));
  }
};

/// Adds the seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Result<audio::SoundReader> open_sound(const std::string& file, const std::string& raw,
                                      int64_t rate) {
  const audio::RawKind kind = raw.empty()      ? audio::RawKind::kNone
                              : raw == "int16" ? audio::RawKind::kInt16
                                               : audio::RawKind::kFloat32;
  TARN_ASSIGN(audio::SoundReader reader,
              file == "-" ? audio::SoundReader::from_descriptor(STDIN_FILENO, "stdin", kind, rate)
                          : audio::SoundReader::open(file, kind, rate));
  TARN_RETURN_IF_ERROR(reader.expect_rate(rate));
  return reader;
}

Json effort_json(const Effort& effort, int64_t rate) {
  Json json;
  json.set("audio_seconds", effort.audio_seconds(rate));
  json.set("seconds", effort.seconds);
  json.set("real_time_factor", effort.real_time_factor(rate));
  return json;
}

/// The figures of the whole call; `json` gets them behind what it has.
void finish(const Effort& total, int64_t rate, const Options& options, Json& json,
            Console& console) {
  const Json figures = effort_json(total, rate);
  for (const char* key : {"audio_seconds", "seconds", "real_time_factor"}) {
    json.set(key, *figures.find(key));
  }
  json.set("stream", options.stream);
  json.set("beam", options.beam);
  json.set("threads", options.model.threads);
  json.set("peak_rss_bytes", runtime::peak_resident_bytes());
  const double* factor = figures.find("real_time_factor")->as_double();
  console.table(
      {{"audio seconds", fmt::format("{:.2f}", total.audio_seconds(rate))},
       {"seconds", fmt::format("{:.3f}", total.seconds)},
       {"real-time factor", factor == nullptr ? "none" : fmt::format("{:.5f}", *factor)}});
}

const Error kStopped{ErrorCode::kCancelled, "transcription was stopped on request", {}};

/// One file, piece by piece.
Result<Effort> hear(runtime::Transcriber& transcriber, const std::string& file,
                    const model::ModelConfig& config, const Options& options, Context& context) {
  const int64_t rate = config.frontend->sample_rate;
  TARN_ASSIGN(audio::SoundReader reader, open_sound(file, options.raw, rate));
  Speller speller(config.head.symbols);
  std::vector<float> samples(
      static_cast<size_t>(std::max<int64_t>(1, options.chunk_ms * rate / 1000)));
  Effort effort;
  transcriber.reset();
  for (bool over = false; !over;) {
    if (context.cancel.load()) return kStopped;
    TARN_ASSIGN(const int64_t got, reader.read(samples));
    over = got == 0;
    effort.samples += got;
    {
      const Stopwatch stopwatch(effort.seconds);
      const auto piece = std::span<const float>(samples).first(static_cast<size_t>(got));
      TARN_RETURN_IF_ERROR(over ? transcriber.finish() : transcriber.push(piece));
    }
    const std::string text = speller.spell(transcriber.take_labels());
    if (text.empty()) continue;
    context.console.stream(text);
    context.console.line(Json::Object{{"event", "partial"},
                                      {"file", file},
                                      {"audio_seconds", effort.audio_seconds(rate)},
                                      {"text", text}});
  }
  context.console.stream("\n");
  return effort;
}

Status transcribe_streams(const std::shared_ptr<const model::Model>& model, const Options& options,
                          Context& context) {
  const model::ModelConfig& config = model->config();
  ThreadPool pool(static_cast<int>(options.model.threads));
  TARN_ASSIGN(runtime::Transcriber transcriber, runtime::Transcriber::open(model, &pool));
  const int64_t rate = config.frontend->sample_rate;
  Effort total;
  for (const std::string& file : options.files) {
    TARN_ASSIGN(const Effort effort, hear(transcriber, file, config, options, context));
    total += effort;
    Json line = effort_json(effort, rate);
    line.set("event", "file");
    line.set("file", file);
    context.console.line(line);
  }
  Json last = Json::Object{{"event", "done"}, {"chunk_ms", options.chunk_ms}};
  finish(total, rate, options, last, context.console);
  context.console.line(last);
  return {};
}

/// The texts of some files, all of one speaker.
Result<Json::Array> hear_whole(const std::shared_ptr<const model::Model>& model,
                               std::span<const std::string> files, const Options& options,
                               ThreadPool& pool, Effort& total, Context& context) {
  const model::ModelConfig& config = model->config();
  const int64_t rate = config.frontend->sample_rate;
  std::vector<data::Utterance> utterances;
  std::vector<double> durations;
  for (const std::string& file : files) {
    TARN_ASSIGN(audio::SoundReader reader, open_sound(file, options.raw, rate));
    data::Utterance& utterance = utterances.emplace_back();
    TARN_ASSIGN(utterance.frames, reader.read_all(kMaxSamples));
    total.samples += static_cast<int64_t>(utterance.frames.size());
    durations.push_back(static_cast<double>(utterance.frames.size()) / static_cast<double>(rate));
  }
  const Stopwatch stopwatch(total.seconds);
  data::make_frames(*config.frontend, utterances);
  std::vector<std::vector<float>> frames;
  for (data::Utterance& utterance : utterances) frames.push_back(std::move(utterance.frames));
  runtime::RecogniseOptions recognition;
  recognition.beam = options.beam;
  recognition.cancel = &context.cancel;
  TARN_ASSIGN(const auto heard, runtime::recognise(model, frames, recognition, &pool));
  Json::Array results;
  for (size_t i = 0; i < heard.size(); ++i) {
    const std::string text = Speller(config.head.symbols).spell(heard[i]);
    context.console.text(options.files.size() == 1 ? text : files[i] + ": " + text);
    results.push_back(
        Json::Object{{"file", files[i]}, {"audio_seconds", durations[i]}, {"text", text}});
  }
  return results;
}

Status transcribe_files(const std::shared_ptr<const model::Model>& model, const Options& options,
                        Context& context) {
  TARN_ASSIGN(const audio::FrontendConfig frontend, runtime::frontend_of(model->config()));
  const bool together = frontend.normalisation == audio::NormalisationKind::kSpeaker;
  const std::span<const std::string> files = options.files;
  const size_t step = together ? files.size() : 1;
  ThreadPool pool(static_cast<int>(options.model.threads));
  Effort total;
  Json::Array results;
  for (size_t first = 0; first < files.size(); first += step) {
    TARN_ASSIGN(const Json::Array some,
                hear_whole(model, files.subspan(first, step), options, pool, total, context));
    results.insert(results.end(), some.begin(), some.end());
  }
  Json json;
  json.set("files", std::move(results));
  finish(total, frontend.sample_rate, options, json, context.console);
  context.console.document(json);
  return {};
}

Status run(Options& options, Context& context) {
  if (options.chunk_ms > 0 && !options.stream) {
    return invalid_argument("is for --stream", "--chunk");
  }
  if (options.chunk_ms == 0) options.chunk_ms = kDefaultChunkMs;
  TARN_ASSIGN(const auto model, options.model.load());
  const PromptStop prompt(context);
  return options.stream ? transcribe_streams(model, options, context)
                        : transcribe_files(model, options, context);
}

}  // namespace

void add_transcribe(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command = program.add(selection, "transcribe", "Write down what is said in sound",
                                [options](Context& context) { return run(*options, context); });
  options->model.add_to(command);
  command.positionals("files", options->files, "FILE",
                      "WAV or FLAC, of the model's sample rate; - is stdin (a pipe: WAV or --raw)");
  command.flag(
      "--stream", options->stream,
      "hear chunk by chunk in constant memory and print at once what is heard (causal models)");
  command.integer("--chunk", options->chunk_ms, 1, 60'000,
                  "milliseconds that --stream hears at a time (default: 100)");
  command.integer("--beam", options->beam, 1, 1'000,
                  "prefixes of the beam search (default: the most probable path)");
  command.choice("--raw", options->raw, {"int16", "float32"},
                 "the sound has no header: mono, little-endian, of the model's sample rate");
  command.exclusive({"--beam", "--stream"});
}

}  // namespace tarn::cli
