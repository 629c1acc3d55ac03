#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "cli/model_options.h"
#include "cli/presets.h"
#include "runtime/generation_bench.h"

namespace tarn::cli {
namespace {

struct Options {
  std::vector<std::string> models;
  std::string preset;
  std::vector<std::string> weights;
  std::vector<int64_t> batches = {1, 64};
  int64_t length = 0;
  int64_t repeats = 3;
  int64_t positions = 6;
  int64_t threads = 1;
  int64_t seed = 1;
};

using runtime::GenerationBenchRow;
using Entries = std::vector<runtime::GenerationBenchOptions::Entry>;

/// "NAME=FOLDER", or a folder that is its own name.
std::pair<std::string, std::string> split_model(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return {text, text};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Result<Entries> load_models(const Options& options) {
  Entries entries;
  for (const std::string& text : options.models) {
    const auto [name, folder] = split_model(text);
    for (const std::string& format : options.weights) {
      ModelOptions model_options;
      model_options.folder = folder;
      model_options.weights = format;
      TARN_ASSIGN(auto model, model_options.load());
      entries.push_back({name, std::move(model), weight_format_from_name(format), false});
    }
  }
  return entries;
}

/// The preset's linear model in every format, and its softmax twin in the first of them.
Result<Entries> make_preset(const Options& options) {
  TARN_ASSIGN(const Preset preset, find_preset(options.preset));
  Entries entries;
  const auto add = [&](const std::string& name, const model::ModelConfig& config,
                       const std::string& format, bool baseline) {
    model::Model::Options model_options;
    model_options.pack.format = weight_format_from_name(format);
    entries.push_back(
        {options.preset + " " + name,
         model::Model::random(config, static_cast<uint64_t>(options.seed), model_options),
         model_options.pack.format, baseline});
  };
  for (const std::string& format : options.weights) add("linear", preset.linear, format, false);
  add("softmax", preset.softmax, options.weights.front(), true);
  return entries;
}

std::string method_text(const GenerationBenchRow& row) {
  const std::string format = weight_format_name(row.format);
  const std::string name = row.model + (format == "f32" ? "" : " " + format);
  std::string integrated;
  if (row.timed_positions > 0) {
    integrated = fmt::format(" ({} positions timed, integrated)", row.timed_positions);
  } else if (row.integrated) {
    integrated = fmt::format(" ({} tokens timed, integrated)", row.timed_tokens);
  }
  if (row.mode == runtime::GenerateMode::kParallel) return name + ", no cache" + integrated;
  return name + (row.bounded_state ? ", as RNN" : ", with cache") + integrated;
}

/// A number, or null where nothing was measured.
Json measured(double value) { return value > 0 ? Json(value) : Json(); }

Json figures_json(const GenerationBenchRow::Figures& figures, double slowest) {
  Json json;
  json.set("images_per_second", figures.sequences_per_second);
  json.set("images_per_second_min", figures.sequences_per_second_min);
  json.set("images_per_second_max", figures.sequences_per_second_max);
  json.set("tokens_per_second", figures.tokens_per_second);
  json.set("ms_per_token_first", figures.ms_per_token_first);
  json.set("ms_per_token_last", figures.ms_per_token_last);
  json.set("percent_of_roof", measured(figures.share.percent()));
  json.set("arithmetic_percent", measured(figures.share.arithmetic_percent));
  json.set("memory_percent", measured(figures.share.memory_percent));
  json.set("weights_gb_per_second", measured(1e-9 * figures.weight_bytes_per_second));
  json.set("times_slowest", figures.sequences_per_second / slowest);
  return json;
}

double slowest_of(const std::vector<GenerationBenchRow>& rows, size_t batch) {
  double slowest = rows.front().figures[batch].sequences_per_second;
  for (const auto& row : rows) {
    slowest = std::min(slowest, row.figures[batch].sequences_per_second);
  }
  return slowest;
}

Json row_json(const GenerationBenchRow& row, const std::vector<GenerationBenchRow>& all) {
  Json json;
  json.set("method", method_text(row));
  json.set("model", row.model);
  json.set("weights", weight_format_name(row.format));
  json.set("mode", row.mode == runtime::GenerateMode::kParallel ? "parallel" : "recurrent");
  json.set("bounded_state", row.bounded_state);
  json.set("integrated", row.integrated);
  json.set("timed_positions", row.timed_positions);
  json.set("timed_tokens", row.timed_tokens);
  json.set("state_bytes_per_sequence", row.state_bytes_per_sequence);
  for (size_t i = 0; i < row.figures.size(); ++i) {
    json.set(fmt::format("batch_{}", row.figures[i].batch),
             figures_json(row.figures[i], slowest_of(all, i)));
  }
  return json;
}

void print(const std::vector<GenerationBenchRow>& rows, Console& console) {
  for (size_t i = 0; i < rows.front().figures.size(); ++i) {
    console.text(fmt::format("batch {}", rows.front().figures[i].batch));
    std::vector<std::vector<std::string>> table = {{"method", "sequences/s", "ms/token first",
                                                    "ms/token last", "% of roof", "state",
                                                    "times slowest"}};
    const double slowest = slowest_of(rows, i);
    for (const auto& row : rows) {
      const auto& figures = row.figures[i];
      const double percent = figures.share.percent();
      table.push_back({method_text(row), fmt::format("{:.4g}", figures.sequences_per_second),
                       ms_text(figures.ms_per_token_first), ms_text(figures.ms_per_token_last),
                       percent > 0 ? fmt::format("{:.0f}", percent) : "",
                       bytes_text(row.state_bytes_per_sequence),
                       fmt::format("{:.1f}x", figures.sequences_per_second / slowest)});
    }
    console.table(table);
    console.text("");
  }
}

/// The fastest of what carries its state along; null members when there are baselines alone.
void set_best(const std::vector<GenerationBenchRow>& rows, Json& json) {
  const GenerationBenchRow* best_row = nullptr;
  const GenerationBenchRow::Figures* best = nullptr;
  for (const auto& row : rows) {
    if (row.baseline || row.mode != runtime::GenerateMode::kRecurrent) continue;
    for (const auto& figures : row.figures) {
      if (best != nullptr && figures.sequences_per_second <= best->sequences_per_second) continue;
      best_row = &row;
      best = &figures;
    }
  }
  json.set("images_per_second", best != nullptr ? Json(best->sequences_per_second) : Json());
  json.set("best_batch", best != nullptr ? Json(best->batch) : Json());
  json.set("best_method", best != nullptr ? Json(method_text(*best_row)) : Json());
  json.set("best_weights", best != nullptr ? Json(weight_format_name(best_row->format)) : Json());
  json.set("percent_of_roof", best != nullptr ? measured(best->share.percent()) : Json());
}

Json document(const Options& options, const runtime::GenerationRoof& roof,
              const std::vector<GenerationBenchRow>& rows) {
  Json::Array array;
  for (const auto& row : rows) array.push_back(row_json(row, rows));
  Json limits;
  limits.set("f32_gflops", 1e-9 * roof.base.flops_per_second);
  limits.set("bf16_gflops", measured(1e-9 * roof.bf16_per_second));
  limits.set("int8_gops", measured(1e-9 * roof.int8_per_second));
  for (const auto& level : roof.base.levels) {
    limits.set(level.kind + "_gb_per_second", 1e-9 * level.bytes_per_second);
  }
  Json json;
  if (!options.preset.empty()) json.set("preset", options.preset);
  set_best(rows, json);
  json.set("threads", options.threads);
  json.set("repeats", options.repeats);
  json.set("limits", std::move(limits));
  json.set("rows", std::move(array));
  return json;
}

Status run(Options options, Context& context) {
  if (options.models.empty() == options.preset.empty()) {
    return invalid_argument("got neither, wanted --models or --preset", "bench generate");
  }
  if (options.weights.empty()) {
    options.weights =
        options.preset.empty() ? std::vector<std::string>{"f32"} : weight_format_names();
  }
  runtime::GenerationBenchOptions bench;
  TARN_ASSIGN(bench.models, options.preset.empty() ? load_models(options) : make_preset(options));
  bench.batches = options.batches;
  bench.length = options.length;
  bench.repeats = options.repeats;
  bench.timed_positions = options.positions;
  bench.seed = static_cast<uint64_t>(options.seed);
  bench.cancel = &context.cancel;
  bench.progress = [&](int64_t done, int64_t total) {
    context.console.progress("bench", done, total, "runs");
  };
  ThreadPool pool(static_cast<int>(options.threads));
  const runtime::GenerationRoof roof = runtime::measure_generation_roof(pool);
  bench.roof = &roof;
  TARN_ASSIGN(const auto rows, runtime::bench_generation(bench, &pool));
  context.console.end_progress();
  context.console.document(document(options, roof, rows));
  print(rows, context.console);
  return {};
}

}  // namespace

void add_bench_generate(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command =
      program.add(selection, "generate", "Generation with and without a state, methods alternating",
                  [options](Context& context) { return run(*options, context); });
  command.texts("--models", options->models, "MODEL ...", "model folders, or NAME=FOLDER");
  command.choice("--preset", options->preset, preset_names(),
                 "the paper's linear model with random weights, no folder needed, and its softmax "
                 "twin as a baseline");
  command.exclusive({"--models", "--preset"});
  command.choices("--weights", options->weights, weight_format_names(),
                  "formats of the matrices, separated by commas (default: f32; of a preset all); "
                  "the twin takes the first");
  command.integers("--batch", options->batches, 1, 65'536,
                   "batch sizes, separated by commas (default: 1,64)");
  command.integer("--length", options->length, 1, 1'000'000'000,
                  "tokens per sequence (default: the model's max_tokens); of images that many are "
                  "timed and whole images integrated");
  command.integer("--repeats", options->repeats, 1, 1000,
                  "rounds over all methods but the twin; figures are medians (default: 3)");
  command.integer("--positions", options->positions, 2, 1000,
                  "prefix lengths timed where totals are integrated (default: 6)");
  command.integer("--seed", options->seed, 0, INT64_MAX,
                  "of the draws and of a preset's weights (default: 1)");
  command.threads(options->threads);
}

}  // namespace tarn::cli
