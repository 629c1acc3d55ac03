#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "cli/model_options.h"
#include "runtime/generation_bench.h"

namespace tarn::cli {
namespace {

struct Options {
  std::vector<std::string> models;
  std::vector<int64_t> batches = {1, 64};
  int64_t length = 0;
  int64_t repeats = 3;
  int64_t positions = 6;
  int64_t threads = 1;
  int64_t seed = 1;
};

/// "NAME=FOLDER", or a folder that is its own name.
std::pair<std::string, std::string> split_model(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return {text, text};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::string method_text(const runtime::GenerationBenchRow& row) {
  if (row.integrated) {
    return fmt::format("{}, no cache ({} positions timed, integrated)", row.model,
                       row.timed_positions);
  }
  return fmt::format("{}, {}", row.model, row.bounded_state ? "as RNN" : "with cache");
}

Json row_json(const runtime::GenerationBenchRow& row,
              const std::vector<runtime::GenerationBenchRow>& all) {
  Json json;
  json.set("method", method_text(row));
  json.set("model", row.model);
  json.set("mode", row.integrated ? "parallel" : "recurrent");
  json.set("bounded_state", row.bounded_state);
  json.set("integrated", row.integrated);
  json.set("state_bytes_per_sequence", row.state_bytes_per_sequence);
  for (size_t i = 0; i < row.figures.size(); ++i) {
    const auto& figures = row.figures[i];
    double slowest = figures.sequences_per_second;
    for (const auto& other : all) {
      slowest = std::min(slowest, other.figures[i].sequences_per_second);
    }
    Json inner;
    inner.set("images_per_second", figures.sequences_per_second);
    inner.set("images_per_second_min", figures.sequences_per_second_min);
    inner.set("images_per_second_max", figures.sequences_per_second_max);
    inner.set("tokens_per_second", figures.tokens_per_second);
    inner.set("ms_per_token_first", figures.ms_per_token_first);
    inner.set("ms_per_token_last", figures.ms_per_token_last);
    inner.set("times_slowest", figures.sequences_per_second / slowest);
    json.set(fmt::format("batch_{}", figures.batch), std::move(inner));
  }
  return json;
}

void print(const std::vector<runtime::GenerationBenchRow>& rows, Console& console) {
  for (size_t i = 0; i < rows.front().figures.size(); ++i) {
    console.text(fmt::format("batch {}", rows.front().figures[i].batch));
    std::vector<std::vector<std::string>> table = {
        {"method", "sequences/s", "ms/token first", "ms/token last", "state", "times slowest"}};
    double slowest = rows.front().figures[i].sequences_per_second;
    for (const auto& row : rows) {
      slowest = std::min(slowest, row.figures[i].sequences_per_second);
    }
    for (const auto& row : rows) {
      const auto& figures = row.figures[i];
      table.push_back({method_text(row), fmt::format("{:.4g}", figures.sequences_per_second),
                       fmt::format("{:.4f}", figures.ms_per_token_first),
                       fmt::format("{:.4f}", figures.ms_per_token_last),
                       bytes_text(row.state_bytes_per_sequence),
                       fmt::format("{:.1f}x", figures.sequences_per_second / slowest)});
    }
    console.table(table);
    console.text("");
  }
}

Status run(const Options& options, Context& context) {
  runtime::GenerationBenchOptions bench;
  for (const std::string& text : options.models) {
    ModelOptions model_options;
    const auto [name, folder] = split_model(text);
    model_options.folder = folder;
    TARN_ASSIGN(auto model, model_options.load());
    bench.models.push_back({name, std::move(model)});
  }
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
  TARN_ASSIGN(const auto rows, runtime::bench_generation(bench, &pool));
  context.console.end_progress();
  Json::Array array;
  for (const auto& row : rows) array.push_back(row_json(row, rows));
  Json json;
  json.set("threads", options.threads);
  json.set("repeats", options.repeats);
  json.set("rows", std::move(array));
  context.console.document(json);
  print(rows, context.console);
  return {};
}

}  // namespace

void add_bench_generate(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command =
      program.add(selection, "generate", "Generation with and without a state, methods alternating",
                  [options](Context& context) { return run(*options, context); });
  command.required_texts("--models", options->models, "MODEL ...", "model folders, or NAME=FOLDER");
  command.integers("--batch", options->batches, 1, 65'536,
                   "batch sizes, separated by commas (default: 1,64)");
  command.integer("--length", options->length, 1, 1'000'000'000,
                  "tokens per sequence (default: the model's max_tokens)");
  command.integer("--repeats", options->repeats, 1, 1000,
                  "rounds over all methods; figures are medians (default: 3)");
  command.integer("--positions", options->positions, 2, 1000,
                  "prefix lengths timed for generation without a cache (default: 6)");
  command.integer("--seed", options->seed, 0, INT64_MAX, "of the draws (default: 1)");
  command.threads(options->threads);
}

}  // namespace tarn::cli
