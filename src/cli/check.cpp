#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/threads.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "cli/prompt_stop.h"
#include "runtime/selftest.h"

namespace tarn::cli {
namespace {

struct Options {
  ModelOptions model;
  std::vector<std::string> mixers;
  std::string config;
  int64_t tokens = 0;
  int64_t seed = 1;
  double tolerance = 0;
};

Json difference_json(const runtime::FormDifference& difference) {
  Json json;
  json.set("max_error", difference.max_error);
  json.set("max_row_error", difference.max_row_error);
  json.set("norm_error", difference.norm_error);
  return json;
}

/// Reports a failed check: as the exit's sentence, and as "error" in the check's own JSON.
void fail(const std::string& message, const std::string& where, Context& context, Json& json) {
  json.set("error", error_json("check_failed", message, where));
  context.finding = where + ": " + message;
}

Status forms(const Options& options, Context& context) {
  TARN_ASSIGN(const auto model, options.model.load());
  const int64_t most = model->config().max_tokens;
  const int64_t tokens = options.tokens > 0 ? options.tokens : (most > 0 ? most : 1024);
  ThreadPool pool(static_cast<int>(options.model.threads));
  const PromptStop prompt(context);
  TARN_ASSIGN(const runtime::FormComparison result,
              runtime::compare_forms(model, tokens, static_cast<uint64_t>(options.seed), &pool,
                                     &context.cancel));
  const bool passed = result.max_error() <= options.tolerance;
  Json json;
  json.set("tokens", result.tokens);
  json.set("chunk_parallel",
           result.chunk_parallel ? difference_json(*result.chunk_parallel) : Json());
  json.set("step_parallel", difference_json(result.step_parallel));
  json.set("step_chunk", difference_json(result.step_chunk));
  json.set("max_error", result.max_error());
  json.set("max_row_error", result.max_row_error());
  json.set("tolerance", options.tolerance);
  json.set("passed", passed);
  json.set("seconds_parallel", result.parallel_seconds);
  json.set("seconds_chunk", result.chunk_seconds);
  json.set("seconds_step", result.step_seconds);
  if (!passed) {
    fail(fmt::format("the forms differ by {:.2e}, wanted at most {:.2e}", result.max_error(),
                     options.tolerance),
         options.model.folder, context, json);
  }
  context.console.document(json);
  auto row = [](const char* name, const runtime::FormDifference& difference) {
    return std::vector<std::string>{name, fmt::format("{:.2e}", difference.max_error),
                                    fmt::format("{:.2e}", difference.max_row_error),
                                    fmt::format("{:.2e}", difference.norm_error)};
  };
  context.console.table(
      {{fmt::format("{} tokens", result.tokens), "largest", "worst row", "2-norm"},
       result.chunk_parallel ? row("chunk - parallel", *result.chunk_parallel)
                             : std::vector<std::string>{"chunk - parallel", "same code"},
       row("step - parallel", result.step_parallel),
       row("step - chunk", result.step_chunk)});
  context.console.text(
      fmt::format("{}: the largest relative difference is {:.2e}, the tolerance {:.2e}",
                  passed ? "passed" : "FAILED", result.max_error(), options.tolerance));
  return {};
}

Result<std::vector<const mixers::MixerDef*>> chosen_mixers(const Options& options) {
  std::vector<const mixers::MixerDef*> named;
  for (const std::string& name : options.mixers) {
    TARN_ASSIGN(const mixers::MixerDef* mixer, mixers::find_mixer(name, "--mixer"));
    if (mixer->step == nullptr) {
      return Error{ErrorCode::kUnsupported, "the mixer has no step to run", mixer->name};
    }
    if (!mixer->bounded_state) {
      return Error{ErrorCode::kUnsupported,
                   "the mixer's state grows with every token; wanted mixers whose state is bounded",
                   mixer->name};
    }
    named.push_back(mixer);
  }
  if (!named.empty()) return named;
  std::vector<const mixers::MixerDef*> bounded;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (mixer->bounded_state && mixer->step != nullptr) bounded.push_back(mixer);
  }
  return bounded;
}

Status long_run(const Options& options, Context& context) {
  constexpr int64_t kMostGrowth = int64_t{1} << 20;
  TARN_ASSIGN(const auto mixers, chosen_mixers(options));
  for (const mixers::MixerDef* mixer : mixers) {
    runtime::LongRunOptions run;
    run.tokens = options.tokens;
    run.seed = static_cast<uint64_t>(options.seed);
    run.config = options.config;
    run.cancel = &context.cancel;
    run.progress = [&](int64_t done, int64_t total) {
      context.console.progress(mixer->name, done, total, "tokens");
    };
    TARN_ASSIGN(const runtime::LongRunResult result, runtime::long_run_check(*mixer, run));
    context.console.end_progress();
    const bool grew = result.resident_growth_bytes >= kMostGrowth;
    const bool good = result.norm_error <= options.tolerance && !grew;
    Json json;
    json.set("mixer", mixer->name);
    json.set("config", result.config);
    json.set("tokens", result.tokens);
    json.set("norm_error", result.norm_error);
    json.set("max_window_error", result.max_window_error);
    json.set("last_window_error", result.last_window_error);
    json.set("tolerance", options.tolerance);
    json.set("state_bytes", result.state_bytes);
    json.set("resident_growth_bytes", result.resident_growth_bytes);
    json.set("seconds", result.seconds);
    json.set("us_per_token_first", result.us_per_token_first);
    json.set("us_per_token_last", result.us_per_token_last);
    json.set("passed", good);
    if (!good) {
      fail(fmt::format("the long run drifts by {:.2e} and its memory grows by {}, wanted at most "
                       "{:.2e} and less than {}",
                       result.norm_error,
                       bytes_text(std::max<int64_t>(0, result.resident_growth_bytes)),
                       options.tolerance, bytes_text(kMostGrowth)),
           mixer->name, context, json);
    }
    context.console.line(json);
    context.console.text(fmt::format(
        "{}: {} steps against double precision: relative error {:.2e} (worst 1,000 tokens {:.2e}), "
        "state {}, memory growth {}, {:.3f} us a step in the first tenth, {:.3f} in the last: {}",
        mixer->name, result.tokens, result.norm_error, result.max_window_error,
        bytes_text(result.state_bytes), bytes_text(result.resident_growth_bytes),
        result.us_per_token_first, result.us_per_token_last, good ? "passed" : "FAILED"));
  }
  return {};
}

}  // namespace

void add_check(Command& program, Selection& selection) {
  Command check = program.group("check", "Compare the forms of a computation");

  auto compare = std::make_shared<Options>();
  compare->tolerance = 1e-5;
  Command forms_command =
      check.add(selection, "forms", "Parallel against chunk against one token at a time",
                [compare](Context& context) { return forms(*compare, context); });
  compare->model.add_to(forms_command);
  forms_command.integer("--tokens", compare->tokens, 1, 100'000'000,
                        "random tokens (default: the model's max_tokens)");
  forms_command.integer("--seed", compare->seed, 0, INT64_MAX, "of the tokens (default: 1)");
  forms_command.number("--tolerance", compare->tolerance, 0, 1,
                       "largest difference allowed, relative (default: 1e-5)");

  auto drift = std::make_shared<Options>();
  drift->tokens = 1'000'000;
  drift->tolerance = 1e-3;
  Command long_command =
      check.add(selection, "long", "Many steps of an operator against double precision",
                [drift](Context& context) { return long_run(*drift, context); });
  long_command.texts("--mixer", drift->mixers, "NAME",
                     "names, separated by commas (default: every one with a bounded state)");
  long_command.text("--config", drift->config, "JSON", "the mixer's config as JSON");
  long_command.integer("--tokens", drift->tokens, 1, 1'000'000'000, "steps (default: 1000000)");
  long_command.integer("--seed", drift->seed, 0, INT64_MAX, "of the inputs (default: 1)");
  long_command.number("--tolerance", drift->tolerance, 0, 1,
                      "largest relative error (default: 1e-3)");
}

}  // namespace tarn::cli
