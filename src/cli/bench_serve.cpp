#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "cli/bench.h"
#include "serve/api/auth.h"
#include "serve/load/load.h"

namespace tarn::cli {
namespace {

using serve::load::LoadOptions;
using serve::load::LoadResult;
using serve::load::Samples;
using serve::load::Spread;

constexpr int64_t kMaxKeyFileBytes = int64_t{1} << 20;

struct Options {
  LoadOptions load;
  std::string key_file;
  int64_t io_threads = 1;
};

/// Figures that have been sorted already, of the document and of the tables.
struct Spreads {
  Spread first_token, gaps, gaps_with_prompts, long_first_token;
};

Spreads spreads_of(const Samples& samples) {
  return {serve::load::spread_of(samples.first_token), serve::load::spread_of(samples.gaps),
          serve::load::spread_of(samples.gaps_with_prompts),
          serve::load::spread_of(samples.long_first_token)};
}

Json to_json(const Spread& spread) {
  if (spread.count == 0) return {};
  return Json::Object{{"count", spread.count},
                      {"p50", 1e3 * spread.p50},
                      {"p99", 1e3 * spread.p99},
                      {"max", 1e3 * spread.max}};
}

Json to_json(const std::optional<double>& value) {
  return value ? Json(static_cast<int64_t>(*value)) : Json();
}

Json to_json(const Options& options, const LoadResult& result, const Spreads& spreads) {
  const Samples& samples = result.samples;
  Json errors = Json::Object();
  for (const auto& [status, count] : samples.errors) errors.set(status, count);
  Json json;
  json.set("url", options.load.url);
  json.set("model", result.model);
  json.set("streams", options.load.streams);
  json.set("idle", result.idle_open);
  json.set("idle_lost", samples.idle_lost);
  json.set("prompt_tokens", options.load.prompt_tokens);
  json.set("max_tokens", options.load.max_tokens);
  json.set("seconds", result.seconds);
  json.set("requests", std::ssize(samples.turns));
  json.set("wrong", samples.wrong);
  json.set("errors", std::move(errors));
  json.set("distinct_answers", samples.distinct_answers());
  json.set("requests_per_second", result.throughput.turns);
  json.set("tokens_per_second", result.throughput.tokens);
  json.set("time_to_first_token_ms", to_json(spreads.first_token));
  json.set("inter_token_ms", to_json(spreads.gaps));
  json.set("inter_token_ms_with_prompts", to_json(spreads.gaps_with_prompts));
  json.set("long_prompts", samples.long_prompts);
  json.set("long_prompts_skipped", samples.long_skipped);
  json.set("long_prompt_tokens", options.load.long_prompt_tokens);
  json.set("long_prompt_first_token_ms", to_json(spreads.long_first_token));
  json.set("sessions", std::ssize(samples.sessions));
  json.set("bytes_per_session", to_json(result.bytes_per_session));
  json.set("server_peak_resident_bytes", to_json(result.peak_resident_bytes));
  json.set("server_connections", to_json(result.connections));
  return json;
}

std::string memory_text(const std::optional<double>& bytes) {
  return bytes ? bytes_text(static_cast<int64_t>(*bytes)) : "unknown";
}

void add_row(const std::string& name, const Spread& spread,
             std::vector<std::vector<std::string>>& rows) {
  if (spread.count == 0) return;
  rows.push_back({name, fmt::format("{:.2f}", 1e3 * spread.p50),
                  fmt::format("{:.2f}", 1e3 * spread.p99),
                  fmt::format("{:.2f}", 1e3 * spread.max)});
}

void print(const Options& options, const LoadResult& result, const Spreads& spreads,
           Console& console) {
  const Samples& samples = result.samples;
  std::vector<std::vector<std::string>> rows = {
      {"model", result.model},
      {"streams", fmt::format("{}", options.load.streams)},
      {"idle connections", fmt::format("{} ({} lost)", result.idle_open, samples.idle_lost)},
      {"requests answered", fmt::format("{} in {:.1f} s", samples.turns.size(), result.seconds)},
      {"wrong answers", fmt::format("{}", samples.wrong)},
      {"different answers to one question", fmt::format("{}", samples.distinct_answers())},
      {"requests/s", fmt::format("{:.1f}", result.throughput.turns)},
      {"tokens/s", fmt::format("{:.0f}", result.throughput.tokens)}};
  for (const auto& [status, count] : samples.errors) {
    rows.push_back({"refused: " + status, fmt::format("{}", count)});
  }
  if (options.load.long_prompts > 0) {
    rows.push_back({fmt::format("prompts of {} tokens", options.load.long_prompt_tokens),
                    fmt::format("{} ({} left out)", samples.long_prompts, samples.long_skipped)});
  }
  if (options.load.sessions) {
    rows.push_back({"sessions", fmt::format("{}", samples.sessions.size())});
    rows.push_back({"memory per session", memory_text(result.bytes_per_session)});
  }
  rows.push_back({"most memory of the server", memory_text(result.peak_resident_bytes)});
  console.table(rows);
  console.text("");
  std::vector<std::vector<std::string>> table = {{"ms", "p50", "p99", "max"}};
  add_row("to the first token", spreads.first_token, table);
  add_row("between tokens", spreads.gaps, table);
  add_row("while long prompts are read", spreads.gaps_with_prompts, table);
  add_row("to a long prompt's token", spreads.long_first_token, table);
  console.table(table);
}

Status run(const Options& given, Context& context) {
  Options options = given;
  options.load.io_threads = static_cast<int>(options.io_threads);
  if (!options.key_file.empty()) {
    TARN_ASSIGN(const std::string text, read_file(options.key_file, kMaxKeyFileBytes));
    TARN_ASSIGN(const auto keys, serve::api::parse_api_keys(text, options.key_file));
    for (const auto& key : keys) options.load.keys.push_back(key.key);
  }
  TARN_ASSIGN(const LoadResult result, serve::load::run_load(options.load, context.cancel));
  const Spreads spreads = spreads_of(result.samples);
  context.console.document(to_json(options, result, spreads));
  print(options, result, spreads, context.console);
  context.finding = result.finding();
  return {};
}

}  // namespace

void add_bench_serve(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  LoadOptions& load = options->load;
  Command command =
      program.add(selection, "serve", "A running server under load: latency, throughput, answers",
                  [options](Context& context) { return run(*options, context); });
  command.positional("URL", load.url, "URL", "of the server, such as http://127.0.0.1:8080");
  command.text("--model", load.model, "NAME", "(default: the first that the server tells)");
  command.text("--api-key-file", options->key_file, "FILE",
               "one \"name:key\" or \"key\" per line; the connections take them in turn");
  command.integer("--streams", load.streams, 1, 60'000, "that draw at once (default: 32)");
  command.integer("--idle", load.idle, 0, 60'000, "connections held open beside them (default: 0)");
  command.number("--seconds", load.seconds, 0.1, 86'400,
                 "in which requests are made (default: 10)");
  command.integer("--requests", load.requests, 1, 1'000'000'000, "made in all, instead");
  command.exclusive({"--seconds", "--requests"});
  command.integer("--prompt-tokens", load.prompt_tokens, 1, 1'000'000,
                  "of a request (default: 16)");
  command.integer("--max-tokens", load.max_tokens, 1, 1'000'000,
                  "drawn by a request (default: 64)");
  command.number("--long-prompts", load.long_prompts, 0, 1000,
                 "that arrive per second in the second half (default: 0)");
  command.integer("--long-prompt-tokens", load.long_prompt_tokens, 1, 1'000'000,
                  "of these (default: 4096)");
  command.flag("--sessions", load.sessions, "each stream continues a session of its own");
  command.number("--timeout", load.timeout_seconds, 1, 86'400,
                 "seconds for any one request (default: 120)");
  command.integer("--io-threads", options->io_threads, 1, 64, "of this program (default: 1)");
}

}  // namespace tarn::cli
