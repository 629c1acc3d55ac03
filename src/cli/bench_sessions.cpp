#include <fmt/format.h>

#include <memory>

#include "cli/bench.h"
#include "cli/model_options.h"
#include "cli/prompt_stop.h"
#include "serve/session_bench.h"

namespace tarn::cli {
namespace {

using serve::SessionBenchResult;

struct Options {
  ModelOptions model;
  int64_t sessions = 10'000;
  int64_t streams = 32;
  int64_t tokens = 256;
  int64_t prompt_tokens = 4096;
  int64_t prompt_budget = 32;
  int64_t repeats = 3;
  int64_t seed = 1;
};

double speedup(const SessionBenchResult& result) {
  return result.all_tokens_per_second / result.one_tokens_per_second;
}

double session_tokens_per_second(const SessionBenchResult& result) {
  return static_cast<double>(result.session_tokens) / result.session_seconds;
}

Json gaps_json(const SessionBenchResult::Gaps& gaps) {
  Json json;
  json.set("p50", 1e3 * gaps.p50);
  json.set("p99", 1e3 * gaps.p99);
  json.set("max", 1e3 * gaps.max);
  return json;
}

Json to_json(const Options& options, const SessionBenchResult& result) {
  const bool prompts = result.prompts > 0;
  const bool resident = result.resident_growth_bytes >= 0;
  Json json;
  json.set("sessions", result.sessions);
  json.set("turns", result.turns);
  json.set("different", result.different);
  json.set("tokens_min", result.tokens_min);
  json.set("tokens_max", result.tokens_max);
  json.set("state_bytes_first", result.state_bytes_first);
  json.set("state_bytes_last", result.state_bytes_last);
  json.set("bytes_per_session", result.table_bytes / result.sessions);
  json.set("resident_growth_bytes", resident ? Json(result.resident_growth_bytes) : Json());
  json.set("session_tokens_per_second", session_tokens_per_second(result));
  json.set("streams", result.streams);
  json.set("stream_tokens", result.stream_tokens);
  json.set("one_tokens_per_second", result.one_tokens_per_second);
  json.set("all_tokens_per_second", result.all_tokens_per_second);
  json.set("speedup", speedup(result));
  json.set("inter_token_ms_one", gaps_json(result.one));
  json.set("inter_token_ms", gaps_json(result.all));
  json.set("inter_token_ms_with_prompts", prompts ? gaps_json(result.with_prompts) : Json());
  json.set("prompt_tokens", options.prompt_tokens);
  json.set("prompt_budget", options.prompt_budget);
  json.set("prompt_tokens_per_second", prompts ? Json(result.prompt_tokens_per_second) : Json());
  json.set("threads", options.model.threads);
  return json;
}

std::vector<std::string> gaps_row(const std::string& name, const SessionBenchResult::Gaps& gaps) {
  return {name, fmt::format("{:.2f}", 1e3 * gaps.p50), fmt::format("{:.2f}", 1e3 * gaps.p99),
          fmt::format("{:.2f}", 1e3 * gaps.max)};
}

void print(const Options& options, const SessionBenchResult& result, Console& console) {
  const std::string growth =
      result.resident_growth_bytes < 0
          ? "unknown"
          : fmt::format("{} ({} each)", bytes_text(result.resident_growth_bytes),
                        bytes_text(result.resident_growth_bytes / result.sessions));
  console.table({{"sessions", fmt::format("{}", result.sessions)},
                 {"not as the control", fmt::format("{}", result.different)},
                 {"tokens of one, least and most",
                  fmt::format("{}, {}", result.tokens_min, result.tokens_max)},
                 {"state after the first turn", bytes_text(result.state_bytes_first)},
                 {"state after the last turn", bytes_text(result.state_bytes_last)},
                 {"counted per session", bytes_text(result.table_bytes / result.sessions)},
                 {"resident growth", growth},
                 {"tokens/s, in turn", fmt::format("{:.0f}", session_tokens_per_second(result))},
                 {"tokens/s, one stream", fmt::format("{:.0f}", result.one_tokens_per_second)},
                 {fmt::format("tokens/s, {} streams", result.streams),
                  fmt::format("{:.0f} ({:.1f}x)", result.all_tokens_per_second, speedup(result))}});
  console.text("");
  std::vector<std::vector<std::string>> table = {
      {"ms between tokens", "p50", "p99", "max"},
      gaps_row("one stream", result.one),
      gaps_row(fmt::format("{} streams", result.streams), result.all)};
  if (result.prompts > 0) {
    table.push_back(
        gaps_row(fmt::format("with {}-token prompts", options.prompt_tokens), result.with_prompts));
  }
  console.table(table);
}

Status run(const Options& options, Context& context) {
  TARN_ASSIGN(const auto model, options.model.load());
  serve::SessionBenchOptions bench;
  bench.sessions = options.sessions;
  bench.streams = options.streams;
  bench.tokens = options.tokens;
  bench.prompt_tokens = options.prompt_tokens;
  bench.prompt_budget = options.prompt_budget;
  bench.repeats = options.repeats;
  bench.threads = static_cast<int>(options.model.threads);
  bench.seed = static_cast<uint64_t>(options.seed);
  bench.progress = [&](int64_t done, int64_t total) {
    context.console.progress("sessions", done, total, "turns");
  };
  const PromptStop prompt(context);
  TARN_ASSIGN(const SessionBenchResult result, serve::bench_sessions(model, bench));
  context.console.end_progress();
  context.console.document(to_json(options, result));
  print(options, result, context.console);
  if (result.different > 0) {
    context.finding = fmt::format("{} of {} sessions differ from those of the control",
                                  result.different, result.sessions);
  }
  return {};
}

}  // namespace

void add_bench_sessions(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command =
      program.add(selection, "sessions", "Many sessions of one model: memory, throughput, latency",
                  [options](Context& context) { return run(*options, context); });
  options->model.add_to(command);
  command.integer("--sessions", options->sessions, 1, 10'000'000,
                  "kept at the same time and resumed in turn (default: 10000)");
  command.integer("--streams", options->streams, 1, 256,
                  "that draw at the same time, compared with one (default: 32)");
  command.integer("--tokens", options->tokens, 2, 1'000'000, "drawn by a stream (default: 256)");
  command.integer("--prompt-tokens", options->prompt_tokens, 1, 10'000'000,
                  "of the prompts that arrive while streams draw (default: 4096)");
  command.integer(
      "--prompt-budget", options->prompt_budget, 1, 1'000'000,
      "prompt tokens read between two steps of the streams, saved up until a piece fits "
      "(default: 32)");
  command.integer("--repeats", options->repeats, 1, 1000,
                  "of the throughputs, figures are medians (default: 3)");
  command.integer("--seed", options->seed, 0, INT64_MAX, "of tokens and draws (default: 1)");
}

}  // namespace tarn::cli
