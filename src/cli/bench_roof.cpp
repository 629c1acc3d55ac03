#include <fmt/format.h>

#include <memory>

#include "base/threads.h"
#include "cli/bench.h"
#include "runtime/roof_bench.h"

namespace tarn::cli {
namespace {

struct Options {
  std::vector<int64_t> threads = {1};
  std::vector<std::string> kinds;
  int64_t rounds = runtime::RoofOptions().rounds;
};

Json to_json(const runtime::RoofFigure& figure) {
  const bool present = figure.rounds > 0;
  Json json;
  json.set("kind", figure.kind);
  json.set("threads", figure.threads);
  json.set("value", present ? Json(figure.value) : Json());
  json.set("unit", figure.unit);
  json.set("rounds", figure.rounds);
  json.set("min", present ? Json(figure.min) : Json());
  json.set("max", present ? Json(figure.max) : Json());
  json.set("instructions", figure.instructions.empty() ? Json() : Json(figure.instructions));
  json.set("working_set_bytes", figure.working_set_bytes);
  return json;
}

std::vector<std::string> to_row(const runtime::RoofFigure& figure) {
  const std::string threads = std::to_string(figure.threads);
  if (figure.rounds == 0) return {figure.kind, threads, "absent", "", "", figure.unit, ""};
  return {figure.kind,
          threads,
          fmt::format("{:.4g}", figure.value),
          fmt::format("{:.4g}", figure.min),
          fmt::format("{:.4g}", figure.max),
          figure.unit,
          figure.instructions.empty() ? bytes_text(figure.working_set_bytes) + " per thread"
                                      : figure.instructions};
}

Status run(const Options& options, Context& context) {
  runtime::RoofOptions measure;
  measure.kinds = options.kinds;
  measure.rounds = options.rounds;
  measure.cancel = &context.cancel;
  measure.progress = [&](int64_t done, int64_t total) {
    context.console.progress("roof", done, total, "limits");
  };
  std::vector<std::vector<std::string>> table = {
      {"limit", "threads", "median", "min", "max", "unit", "measured with"}};
  for (int64_t threads : options.threads) {
    ThreadPool pool(static_cast<int>(threads));
    TARN_ASSIGN(const auto figures, runtime::measure_roof(measure, pool));
    context.console.end_progress();
    for (const runtime::RoofFigure& figure : figures) {
      context.console.line(to_json(figure));
      table.push_back(to_row(figure));
    }
  }
  context.console.table(table);
  return {};
}

}  // namespace

void add_bench_roof(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  const int64_t available = available_threads();
  if (available > 1) options->threads.push_back(available);
  Command command =
      program.add(selection, "roof", "What this machine's arithmetic and memory allow",
                  [options](Context& context) { return run(*options, context); });
  command.integers(
      "--threads", options->threads, 1, 1024,
      fmt::format("thread counts, separated by commas (default: 1 and {})", available));
  command.choices("--kind", options->kinds, runtime::roof_kinds(), "limits (default: all)");
  command.integer("--rounds", options->rounds, 1, 1000,
                  fmt::format("timed rounds of 2 ms (default: {})", options->rounds));
}

}  // namespace tarn::cli
