#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/prompt_stop.h"
#include "runtime/evaluate.h"

namespace tarn::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string data;
  std::string split = "test";
  int64_t limit = 0;
  int64_t length = 0;
  int64_t batch = 8;
  std::string form = "chunk";
};

mixers::Form form_from_name(const std::string& name) {
  if (name == "parallel") return mixers::Form::kParallel;
  return name == "step" ? mixers::Form::kStep : mixers::Form::kChunk;
}

Status run(const Options& options, Context& context) {
  TARN_ASSIGN(const auto model, options.model.load());
  TARN_ASSIGN(const data::SequenceDataset dataset,
              load_data(model->config(), options.data, options.split, options.length));
  const int64_t count = options.limit > 0 ? std::min(options.limit, dataset.count) : dataset.count;
  std::vector<std::vector<int32_t>> sequences;
  for (int64_t i = 0; i < count; ++i) sequences.push_back(sequence_tokens(dataset, i));

  runtime::EvaluateOptions evaluation;
  evaluation.batch = options.batch;
  evaluation.form = form_from_name(options.form);
  evaluation.cancel = &context.cancel;
  evaluation.progress = [&](int64_t done, int64_t total) {
    context.console.progress("eval", done, total, "sequences");
  };
  ThreadPool pool(static_cast<int>(options.model.threads));
  const PromptStop prompt(context);
  TARN_ASSIGN(const runtime::EvaluateResult result,
              runtime::evaluate(model, sequences, evaluation, &pool));
  context.console.end_progress();

  const bool is_text = model->config().modality == model::Modality::kBytes;
  const char* unit = is_text ? "bits_per_byte" : "bits_per_dim";
  Json json;
  json.set(unit, result.bits_per_dim);
  json.set("count", result.sequences);
  json.set("standard_error", result.standard_error);
  json.set("seconds", result.seconds);
  json.set("tokens", result.tokens);
  json.set("split", options.split);
  json.set("threads", options.model.threads);
  context.console.document(json);
  context.console.table(
      {{unit, fmt::format("{:.4f} ± {:.4f}", result.bits_per_dim, result.standard_error)},
       {"sequences", std::to_string(result.sequences)},
       {"tokens", std::to_string(result.tokens)},
       {"tokens/s", fmt::format("{:.0f}", static_cast<double>(result.tokens) / result.seconds)},
       {"seconds", fmt::format("{:.2f}", result.seconds)}});
  return {};
}

}  // namespace

void add_eval(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command =
      program.add(selection, "eval", "Bits per dimension (or byte) of a model on data",
                  [options](Context& context) { return run(*options, context); });
  options->model.add_to(command);
  command.required_text("--data", options->data, "DIR", "folder of the data set, or a text file");
  command.text("--split", options->split, "", "train, valid or test (default)");
  command.integer("--limit", options->limit, 1, 1'000'000'000, "only the first sequences");
  command.integer("--length", options->length, 1, 1'000'000'000,
                  "tokens per window of text (default: the model's max_tokens)");
  command.integer("--batch", options->batch, 1, 65'536, "sequences per pass (default: 8)");
  command.choice("--form", options->form, {"chunk", "parallel", "step"},
                 "chunk (default), parallel or step");
}

}  // namespace tarn::cli
