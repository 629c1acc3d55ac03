#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/threads.h"
#include "cli/bench.h"
#include "cli/prompt_stop.h"
#include "runtime/crossover.h"

namespace tarn::cli {
namespace {

struct Options {
  std::string bounded, growing;
  std::vector<int64_t> tokens = {1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 256, 512, 1024};
  int64_t batch = 16, heads = 8, key_dim = 64, value_dim = 64;
  int64_t repeats = 7;
  int64_t threads = 1;
};

/// The mixer of that name, or the first with that kind of state.
Result<const mixers::MixerDef*> choose(const std::string& name, bool bounded, const char* flag) {
  if (!name.empty()) return mixers::find_mixer(name, flag);
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (mixer->bounded_state == bounded && mixer->step != nullptr) return mixer;
  }
  return Error{ErrorCode::kUnsupported, "this build has no such mixer", flag};
}

std::string crossing_text(double tokens) {
  return tokens < 0 ? std::string("none up to the last n") : fmt::format("{:.1f}", tokens);
}

Json number_or_null(double tokens) { return tokens < 0 ? Json() : Json(tokens); }

Json to_json(const Options& options, const mixers::MixerDef& bounded,
             const mixers::MixerDef& growing, const runtime::CrossoverResult& result) {
  Json::Array rows;
  for (const auto& point : result.points) {
    Json row;
    row.set("n", point.tokens);
    row.set("bounded_bytes", point.bounded_bytes);
    row.set("growing_bytes", point.growing_bytes);
    row.set("bounded_ms", point.bounded_ms);
    row.set("growing_ms", point.growing_ms);
    rows.push_back(std::move(row));
  }
  Json json;
  json.set("bounded", bounded.name);
  json.set("growing", growing.name);
  json.set("heads", options.heads);
  json.set("key_dim", options.key_dim);
  json.set("value_dim", options.value_dim);
  json.set("batch", options.batch);
  json.set("threads", options.threads);
  json.set("predicted_n", result.predicted_tokens);
  json.set("memory_crossover_n", number_or_null(result.memory_tokens));
  json.set("time_crossover_n", number_or_null(result.time_tokens));
  json.set("rows", std::move(rows));
  return json;
}

Status run(Options& options, Context& context) {
  TARN_ASSIGN(const mixers::MixerDef* bounded, choose(options.bounded, true, "--bounded"));
  TARN_ASSIGN(const mixers::MixerDef* growing, choose(options.growing, false, "--growing"));
  runtime::CrossoverOptions measure;
  measure.num_heads = options.heads;
  measure.key_dim = options.key_dim;
  measure.value_dim = options.value_dim;
  measure.batch = options.batch;
  measure.repeats = options.repeats;
  std::sort(options.tokens.begin(), options.tokens.end());
  measure.tokens = options.tokens;
  measure.cancel = &context.cancel;
  measure.progress = [&](int64_t done, int64_t total) {
    context.console.progress("crossover", done, total, "points");
  };
  ThreadPool pool(static_cast<int>(options.threads));
  const PromptStop prompt(context);
  TARN_ASSIGN(const runtime::CrossoverResult result,
              runtime::measure_crossover(*bounded, *growing, measure, &pool));
  context.console.end_progress();
  context.console.document(to_json(options, *bounded, *growing, result));

  std::vector<std::vector<std::string>> table = {
      {"n", fmt::format("{} bytes", bounded->name), fmt::format("{} bytes", growing->name),
       fmt::format("{} ms/step", bounded->name), fmt::format("{} ms/step", growing->name)}};
  for (const auto& point : result.points) {
    table.push_back({std::to_string(point.tokens), std::to_string(point.bounded_bytes),
                     std::to_string(point.growing_bytes), ms_text(point.bounded_ms),
                     ms_text(point.growing_ms)});
  }
  context.console.table(table);
  context.console.text(fmt::format(
      "\nthe growing state passes the fixed one at n = {:.1f} (predicted from the state tables), "
      "{} (memory, measured), {} (time per step, measured)",
      result.predicted_tokens, crossing_text(result.memory_tokens),
      crossing_text(result.time_tokens)));
  return {};
}

}  // namespace

void add_bench_crossover(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command =
      program.add(selection, "crossover", "From which length on a fixed state beats a growing one",
                  [options](Context& context) { return run(*options, context); });
  command.text("--bounded", options->bounded, "NAME", "mixer with a fixed state (default: first)");
  command.text("--growing", options->growing, "NAME", "mixer with a growing one (default: first)");
  command.integers("-n,--tokens", options->tokens, 1, int64_t{1} << 24,
                   "sequence lengths, separated by commas (default: 15 from 1 to 1024)");
  command.integer("--batch", options->batch, 1, 65'536, "sequences (default: 16)");
  command.integer("--heads", options->heads, 1, 4096, "default: 8");
  command.integer("--key-dim", options->key_dim, 1, 4096, "per head (default: 64)");
  command.integer("--value-dim", options->value_dim, 1, 4096, "per head (default: 64)");
  command.integer("--repeats", options->repeats, 1, 1000, "timed calls (default: 7)");
  command.threads(options->threads);
}

}  // namespace tarn::cli
