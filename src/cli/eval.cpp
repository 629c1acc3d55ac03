#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json_override.h"
#include "cli/command.h"
#include "cli/eval_frames.h"
#include "cli/model_options.h"
#include "cli/prompt_stop.h"
#include "runtime/evaluate.h"

namespace tarn::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string data;
  std::vector<std::string> overrides;
  std::string split = "test";
  int64_t limit = 0;
  int64_t length = 0;
  int64_t batch = 8;
  std::string form = "chunk";
  std::vector<int64_t> positions;
  int64_t beam = 0;
  int64_t stream = 0;
  bool transcripts = false;
};

mixers::Form form_from_name(const std::string& name) {
  if (name == "parallel") return mixers::Form::kParallel;
  return name == "step" ? mixers::Form::kStep : mixers::Form::kChunk;
}

/// The generated data that a file describes: a data object, or a training config with one.
Result<data::DataSpec> read_data_spec(const Options& options) {
  constexpr int64_t kMaxSpecBytes = int64_t{1} << 20;
  TARN_ASSIGN(const std::string text, read_file(options.data, kMaxSpecBytes));
  TARN_ASSIGN(Json json, parse_json(text, options.data));
  for (const std::string& assignment : options.overrides) {
    TARN_RETURN_IF_ERROR(apply_override(json, assignment));
  }
  const Json* member = json.find("data");
  TARN_ASSIGN(const data::DataSpec spec,
              data::parse_data_spec(member == nullptr ? json : *member, options.data));
  if (!data::is_generated(spec.kind)) {
    return invalid_argument(
        "describes data that is read from a folder; a model over tokens is evaluated on generated "
        "data",
        options.data);
  }
  return spec;
}

Result<data::SequenceDataset> load_data(const model::ModelConfig& config, const Options& options) {
  if (config.modality == model::Modality::kTokens) {
    TARN_ASSIGN(const data::DataSpec spec, read_data_spec(options));
    return load_split(config, spec, "", options.split);
  }
  if (!options.overrides.empty()) {
    return invalid_argument(
        fmt::format("changes the file that describes the data of a model over tokens; this one is "
                    "over {}",
                    modality_name(config.modality)),
        "--set");
  }
  return cli::load_data(config, options.data, options.split, options.length, options.model.folder);
}

Json to_json(const std::vector<runtime::PositionScore>& ranges, const char* unit) {
  Json::Array rows;
  for (const runtime::PositionScore& range : ranges) {
    Json row;
    row.set("begin", range.begin);
    row.set("end", range.end);
    row.set("counted_tokens", range.counted_tokens);
    row.set(unit, range.counted_tokens == 0 ? Json() : Json(range.bits_per_dim));
    rows.push_back(std::move(row));
  }
  return rows;
}

/// The key of the bits, by what a token is.
const char* bits_unit(model::Modality modality) {
  switch (modality) {
    case model::Modality::kBytes: return "bits_per_byte";
    case model::Modality::kTokens: return "bits_per_token";
    case model::Modality::kImage:
    case model::Modality::kFrames: break;
  }
  return "bits_per_dim";
}

/// Options of models over frames do not go with others, nor the other way round.
Status check_options(const Options& options, bool over_frames) {
  using Given = std::vector<std::pair<bool, const char*>>;
  const Given of_frames = {{options.beam > 0, "--beam"},
                           {options.stream > 0, "--stream"},
                           {options.transcripts, "--transcripts"}};
  const Given of_symbols = {{options.length > 0, "--length"},
                            {!options.positions.empty(), "--positions"}};
  for (const auto& [given, name] : over_frames ? of_symbols : of_frames) {
    if (!given) continue;
    return invalid_argument(
        over_frames ? "is for models over symbols" : "is for models over frames", name);
  }
  return {};
}

Status run(const Options& options, Context& context) {
  TARN_ASSIGN(const auto model, options.model.load());
  const bool over_frames = model->config().modality == model::Modality::kFrames;
  TARN_RETURN_IF_ERROR(check_options(options, over_frames));
  if (over_frames) {
    return eval_frames(model,
                       {options.data, options.split, options.overrides, options.limit, options.beam,
                        options.stream, options.model.threads, options.transcripts},
                       context);
  }
  TARN_ASSIGN(const data::SequenceDataset dataset, load_data(model->config(), options));
  const int64_t count = options.limit > 0 ? std::min(options.limit, dataset.count) : dataset.count;
  std::vector<std::vector<int32_t>> sequences;
  std::vector<std::vector<uint8_t>> counted;
  std::vector<uint8_t> tokens(static_cast<size_t>(dataset.length));
  for (int64_t i = 0; i < count; ++i) {
    auto& mask = counted.emplace_back(tokens.size());
    dataset.sequence(0, i, tokens.data(), mask.data());
    sequences.emplace_back(tokens.begin(), tokens.end());
  }

  runtime::EvaluateOptions evaluation;
  evaluation.counted = counted;
  evaluation.batch = options.batch;
  evaluation.form = form_from_name(options.form);
  evaluation.position_ends = options.positions;
  evaluation.cancel = &context.cancel;
  evaluation.progress = [&](int64_t done, int64_t total) {
    context.console.progress("eval", done, total, "sequences");
  };
  ThreadPool pool(static_cast<int>(options.model.threads));
  const PromptStop prompt(context);
  TARN_ASSIGN(const runtime::EvaluateResult result,
              runtime::evaluate(model, sequences, evaluation, &pool));
  context.console.end_progress();

  const char* unit = bits_unit(model->config().modality);
  Json json;
  json.set(unit, result.bits_per_dim);
  if (result.accuracy) json.set("accuracy", *result.accuracy);
  json.set("count", result.sequences);
  json.set("standard_error", result.standard_error);
  json.set("seconds", result.seconds);
  json.set("tokens", result.tokens);
  json.set("counted_tokens", result.counted_tokens);
  json.set("split", options.split);
  if (dataset.spec.kind == data::DataKind::kTextBytes) {
    json.set("valid_fraction", dataset.spec.valid_fraction);
    json.set("test_fraction", dataset.spec.test_fraction);
  }
  json.set("threads", options.model.threads);
  if (!result.by_position.empty()) json.set("by_position", to_json(result.by_position, unit));
  context.console.document(json);
  std::vector<std::vector<std::string>> rows = {
      {unit, fmt::format("{:.4f} ± {:.4f}", result.bits_per_dim, result.standard_error)}};
  if (result.accuracy) rows.push_back({"accuracy", fmt::format("{:.4f}", *result.accuracy)});
  if (dataset.spec.kind == data::DataKind::kTextBytes) {
    rows.push_back({"split", fmt::format("{}; held out {:g} %, then test {:g} % of the text",
                                         options.split, 100 * dataset.spec.valid_fraction,
                                         100 * dataset.spec.test_fraction)});
  }
  rows.push_back({"sequences", std::to_string(result.sequences)});
  rows.push_back({"tokens", std::to_string(result.tokens)});
  rows.push_back({"counted tokens", std::to_string(result.counted_tokens)});
  rows.push_back(
      {"tokens/s", fmt::format("{:.0f}", static_cast<double>(result.tokens) / result.seconds)});
  rows.push_back({"seconds", fmt::format("{:.2f}", result.seconds)});
  for (const runtime::PositionScore& range : result.by_position) {
    rows.push_back(
        {fmt::format("positions {} to {}", range.begin, range.end - 1),
         range.counted_tokens == 0 ? "none" : fmt::format("{:.4f}", range.bits_per_dim)});
  }
  context.console.table(rows);
  return {};
}

}  // namespace

void add_eval(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command = program.add(
      selection, "eval",
      "Bits per dimension (byte, token) and accuracy of a model on data, or phone errors",
      [options](Context& context) { return run(*options, context); });
  options->model.add_to(command);
  command.required_text(
      "--data", options->data, "PATH",
      "folder of the data set, a text file, or for models over tokens a JSON file "
      "with the data to generate (alone or in a training config)");
  command.texts("--set", options->overrides, "KEY=VALUE",
                "change what that JSON file says, e.g. data.min_pairs=8, or which frames are read, "
                "e.g. data.join=2400");
  command.text("--split", options->split, "", "train, valid or test (default)");
  command.integer("--limit", options->limit, 1, 1'000'000'000, "only the first sequences");
  command.integer("--length", options->length, 1, 1'000'000'000,
                  "tokens per window of text (default: the model's max_tokens)");
  command.integers("--positions", options->positions, 1, 1'000'000'000,
                   "also the bits of ranges of positions that end there, e.g. 256,1024,4096");
  command.integer("--batch", options->batch, 1, 65'536, "sequences per pass (default: 8)");
  command.choice("--form", options->form, {"chunk", "parallel", "step"},
                 "chunk (default), parallel or step; of models over symbols");
  command.integer(
      "--beam", options->beam, 1, 1'000,
      "models over frames: prefixes of the beam search (default: the most probable path)");
  command.integer(
      "--stream", options->stream, 1, 1'000'000,
      "causal models over frames: hear that many frames at a time, with a state between");
  command.exclusive({"--beam", "--stream"});
  command.flag("--transcripts", options->transcripts,
               "models over frames: print what was said and what was heard");
}

}  // namespace tarn::cli
