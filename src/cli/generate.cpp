#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/file.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "report/png.h"
#include "runtime/generate.h"
#include "runtime/process_memory.h"
#include "runtime/state.h"
#include "runtime/utf8.h"

namespace tarn::cli {
namespace {

constexpr int64_t kMaxCount = 10'000'000;

struct Options {
  ModelOptions model;
  SamplerFlags sampler;
  PromptOptions prompt;
  int64_t count = 0;  // 0: one for each prompt
  int64_t batch = 0;
  int64_t length = 0;
  int64_t seed = 0;
  int64_t scale = 0;
  int64_t columns = 0;
  std::string mode = "recurrent";
  std::string out;
};

std::string text_of(const std::vector<int32_t>& tokens) {
  std::string text;
  runtime::Utf8Stream stream;
  for (int32_t token : tokens) stream.push(static_cast<uint8_t>(token), &text);
  stream.flush(&text);
  return text;
}

std::string tokens_text(const std::vector<int32_t>& tokens) {
  return fmt::format("{}", fmt::join(tokens, " "));
}

Status write_images(const model::ModelConfig& config, const Options& options,
                    const std::vector<std::vector<int32_t>>& sequences) {
  std::vector<report::Image> images;
  for (const auto& tokens : sequences) {
    report::Image image =
        report::Image::filled(config.image_width, config.image_height, config.image_channels, 0);
    const size_t size = std::min(image.pixels.size(), tokens.size());
    for (size_t i = 0; i < size; ++i) {
      image.pixels[i] = report::pixel_of_level(tokens[i], config.head.classes);
    }
    images.push_back(std::move(image));
  }
  report::SheetLayout layout;
  layout.scale = options.scale;
  layout.columns = options.columns;
  TARN_ASSIGN(const report::Image sheet, report::make_sheet(images, layout));
  return report::write_png(options.out, sheet);
}

/// Writes --out, or prints what has no file: text and tokens. Pictures need --out to be seen.
Status deliver(const model::ModelConfig& config, const Options& options,
               const std::vector<std::vector<int32_t>>& sequences, Context& context, Json& json) {
  if (config.modality == model::Modality::kImage) {
    if (!options.out.empty()) return write_images(config, options, sequences);
    context.console.text("(no picture written: give --out FILE.png)");
    return {};
  }
  const bool is_text = config.modality == model::Modality::kBytes;
  std::string all;
  Json::Array array;
  for (const auto& tokens : sequences) {
    const std::string text = is_text ? text_of(tokens) : tokens_text(tokens);
    if (!all.empty()) all += "\n";
    all += text;
    array.push_back(is_text ? Json(text) : Json(Json::Array(tokens.begin(), tokens.end())));
  }
  if (!options.out.empty()) return write_file_atomic(options.out, all + "\n");
  context.console.text(all);
  json.set(is_text ? "texts" : "tokens", std::move(array));
  return {};
}

void add_figures(const runtime::GenerateResult& result, const Options& options, bool is_image,
                 Json& json) {
  const double seconds = std::max(result.seconds, 1e-12);
  json.set(is_image ? "images_per_second" : "sequences_per_second",
           static_cast<double>(options.count) / seconds);
  json.set("tokens_per_second", static_cast<double>(result.generated_tokens) / seconds);
  Json per_token;
  per_token.set("first", result.ms_per_token_first);
  per_token.set("last", result.ms_per_token_last);
  json.set("ms_per_token", std::move(per_token));
  json.set("state_bytes_per_sequence", result.state_bytes_per_sequence);
  json.set("peak_rss_bytes", runtime::peak_resident_bytes());
  json.set("threads", options.model.threads);
  json.set("count", options.count);
  json.set("batch", options.batch);
  json.set("mode", options.mode);
  json.set("seed", options.seed);
  json.set("generated_tokens", result.generated_tokens);
  json.set("seconds", result.seconds);
}

void print_figures(const runtime::GenerateResult& result, const Options& options, bool is_image,
                   Console& console) {
  const double seconds = std::max(result.seconds, 1e-12);
  console.table(
      {{is_image ? "images/s" : "sequences/s",
        fmt::format("{:.3f}", static_cast<double>(options.count) / seconds)},
       {"tokens/s", fmt::format("{:.0f}", static_cast<double>(result.generated_tokens) / seconds)},
       {"ms per token, first / last",
        ms_text(result.ms_per_token_first) + " / " + ms_text(result.ms_per_token_last)},
       {"state per sequence", bytes_text(result.state_bytes_per_sequence)},
       {"peak memory", bytes_text(runtime::peak_resident_bytes())},
       {"threads", std::to_string(options.model.threads)},
       {"seconds", fmt::format("{:.2f}", result.seconds)}});
  if (!options.out.empty()) console.text("wrote " + options.out);
}

Status run(Options& options, Context& context) {
  TARN_ASSIGN(const auto model, options.model.load());
  const model::ModelConfig& config = model->config();
  TARN_RETURN_IF_ERROR(runtime::check_causal(*model));
  if (options.length == 0 && config.max_tokens == 0) {
    return invalid_argument("is missing: the model has no max_tokens that it could be", "--length");
  }
  runtime::GenerateOptions generation;
  TARN_ASSIGN(generation.prompts, options.prompt.read(config));
  const auto prompts = static_cast<int64_t>(generation.prompts.size());
  if (prompts > 1 && options.count > 0 && options.count != prompts) {
    return invalid_argument(fmt::format("got {}, wanted {}, one for each prompt, or no -n at all",
                                        options.count, prompts),
                            "-n");
  }
  if (options.count == 0) options.count = std::max<int64_t>(1, prompts);
  if (options.batch == 0) options.batch = std::min<int64_t>(options.count, 64);
  generation.count = options.count;
  generation.batch = options.batch;
  generation.length = options.length;
  generation.seed = static_cast<uint64_t>(options.seed);
  generation.sampler = options.sampler.options();
  generation.mode = options.mode == "parallel" ? runtime::GenerateMode::kParallel
                                               : runtime::GenerateMode::kRecurrent;
  generation.cancel = &context.cancel;
  generation.progress = [&](int64_t done, int64_t total) {
    context.console.progress("generate", done, total, "tokens");
  };
  ThreadPool pool(static_cast<int>(options.model.threads));
  TARN_ASSIGN(const runtime::GenerateResult result, runtime::generate(model, generation, &pool));
  context.console.end_progress();

  const bool is_image = config.modality == model::Modality::kImage;
  Json json;
  add_figures(result, options, is_image, json);
  TARN_RETURN_IF_ERROR(deliver(config, options, result.tokens, context, json));
  if (!options.out.empty()) json.set("out", options.out);
  context.console.document(json);
  if (is_image || !options.out.empty()) print_figures(result, options, is_image, context.console);
  return {};
}

}  // namespace

void add_generate(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command = program.add(selection, "generate", "Draw images, text or tokens from a model",
                                [options](Context& context) { return run(*options, context); });
  options->model.add_to(command);
  command.integer("-n,--count", options->count, 1, kMaxCount,
                  "sequences (default: 1, or one for each of several prompts)");
  command.integer("--batch", options->batch, 1, 1'000'000,
                  "sequences advanced together (default: all, at most 64)");
  command.integer("--length", options->length, 1, 1'000'000'000,
                  "tokens per sequence, the prompt included (default: the model's max_tokens)");
  command.integer("--seed", options->seed, 0, INT64_MAX, "of the random numbers (default: 0)");
  options->sampler.add_to(command);
  options->prompt.add_to(command);
  command.choice("--mode", options->mode, {"recurrent", "parallel"},
                 "recurrent (default: carries a state) or parallel (whole prefix every token)");
  command.text("--out", options->out, "FILE", "PNG sheet of images, or a text file");
  command.integer(
      "--scale", options->scale, 1, 64,
      "pixels per image pixel of the sheet (default: 1, small images more, up to 56 in all)");
  command.integer("--columns", options->columns, 1, 10'000,
                  "images per row of the sheet (default: as square as possible)");
}

}  // namespace tarn::cli
