#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "base/threads.h"
#include "cli/bench.h"
#include "runtime/operator_bench.h"
#include "runtime/roof_bench.h"

namespace tarn::cli {
namespace {

using runtime::OperatorPass;

constexpr std::array<std::pair<const char*, OperatorPass>, 4> kForms = {{
    {"forward", OperatorPass::kForward},
    {"backward", OperatorPass::kBackward},
    {"forward_backward", OperatorPass::kForwardBackward},
    {"step", OperatorPass::kStep},
}};

struct Options {
  std::vector<std::string> mixers;
  std::vector<std::string>
      forms;  ///< empty: forward, backward and step, where there is such a form
  std::vector<int64_t> tokens = {512, 4096};
  std::string config;
  std::string dtype = "f32";
  int64_t batch = 1;
  int64_t heads = 0, key_dim = 0, value_dim = 0;  ///< 0: not asked for
  int64_t repeats = 7;
  int64_t threads = 1;
  int64_t seed = 1;
};

struct Case {
  const mixers::MixerDef* mixer = nullptr;
  std::string form;
  int64_t heads = 0, key_dim = 0, value_dim = 0;  ///< of the output, the first input, the output
  runtime::OperatorBenchOptions bench;
};

Json case_json(const Case& one, const Options& options, double check,
               const runtime::OperatorBenchResult& result, const runtime::Roof& roof,
               const runtime::RoofShare& share) {
  Json json;
  json.set("mixer", one.mixer->name);
  json.set("form", one.form);
  json.set("dtype", options.dtype);
  json.set("threads", options.threads);
  json.set("batch", options.batch);
  json.set("heads", one.heads);
  json.set("key_dim", one.key_dim);
  json.set("value_dim", one.value_dim);
  json.set("n", one.bench.tokens);
  json.set("ms_median", result.ms_median);
  json.set("ms_min", result.ms_min);
  json.set("ms_max", result.ms_max);
  json.set("percent_of_roof", share.percent);
  json.set("roof", share.kind);
  json.set("flops", result.flops);
  json.set("bytes", result.bytes);
  json.set("roof_gflops", 1e-9 * roof.flops_per_second);
  json.set("roof_gb_per_second", 1e-9 * share.bytes_per_second);
  json.set("peak_extra_bytes", result.peak_extra_bytes);
  json.set("resident_growth_bytes", result.resident_growth_bytes);
  json.set("tensor_bytes", result.tensor_bytes);
  json.set("state_bytes", result.state_bytes);
  json.set("check_error_over_tolerance", check);
  json.set("config", one.bench.config);
  return json;
}

std::vector<std::string> case_row(const Case& one, const runtime::OperatorBenchResult& result,
                                  const runtime::RoofShare& share) {
  const bool step = one.bench.pass == OperatorPass::kStep;
  const int64_t tokens = one.bench.batch * (step ? 1 : one.bench.tokens);
  return {one.mixer->name,
          one.form,
          std::to_string(one.bench.tokens),
          ms_text(result.ms_median),
          ms_text(result.ms_min),
          ms_text(result.ms_max),
          fmt::format("{:.4f}", 1e3 * result.ms_median / static_cast<double>(tokens)),
          fmt::format("{:.1f} of {}", share.percent, share.kind),
          bytes_text(result.peak_extra_bytes),
          bytes_text(result.tensor_bytes)};
}

Result<std::vector<Case>> cases_of(const Options& options, const std::atomic<bool>* cancel) {
  std::vector<const mixers::MixerDef*> mixers;
  for (const std::string& name : options.mixers) {
    TARN_ASSIGN(const mixers::MixerDef* mixer, mixers::find_mixer(name, "--mixer"));
    if (!mixers::has_operator(*mixer)) {
      return Error{ErrorCode::kUnsupported, "the mixer has no operator to time", mixer->name};
    }
    mixers.push_back(mixer);
  }
  if (mixers.empty()) {
    std::ranges::copy_if(mixers::all_mixers(), std::back_inserter(mixers),
                         [](const auto* mixer) { return mixers::has_operator(*mixer); });
  }
  std::vector<Case> cases;
  for (const mixers::MixerDef* mixer : mixers) {
    std::string config = options.config;
    if (config.empty()) {
      const auto sized =
          runtime::operator_config(*mixer, options.heads, options.key_dim, options.value_dim);
      if (!sized.ok() && options.mixers.empty()) continue;  // of all, those that have such sizes
      TARN_ASSIGN(config, sized);
    }
    TARN_ASSIGN(const Json json, parse_json(config, "--config"));
    TARN_ASSIGN(const auto parsed, mixer->parse_config(json, 64, "--config"));
    const mixers::OpShape shape = mixer->op_shape(*parsed);
    for (const auto& [name, pass] : kForms) {
      const bool asked = std::ranges::find(options.forms, name) != options.forms.end();
      if (!options.forms.empty() && !asked) continue;
      if (options.forms.empty() && pass == OperatorPass::kForwardBackward) continue;
      Case one;
      one.mixer = mixer;
      one.form = name;
      one.heads = shape.out_heads;
      one.key_dim = shape.inputs.front().dim;
      one.value_dim = shape.out_dim;
      one.bench = {.pass = pass,
                   .dtype = dtype_from_name(options.dtype).value(),
                   .config = config,
                   .batch = options.batch,
                   .repeats = options.repeats,
                   .seed = static_cast<uint64_t>(options.seed),
                   .cancel = cancel};
      const Status form = runtime::check_form(*mixer, *parsed, one.bench);
      if (!form.ok() && (!asked || options.mixers.empty())) continue;
      if (!form.ok()) {
        return Error{ErrorCode::kUnsupported,
                     fmt::format("{} of {} rows: {}", name, options.dtype, form.error().message),
                     mixer->name};
      }
      for (int64_t tokens : options.tokens) {
        one.bench.tokens = tokens;
        cases.push_back(one);
      }
    }
  }
  if (cases.empty()) {
    return Error{
        ErrorCode::kUnsupported,
        fmt::format(
            "no mixer has {} of {} rows for this config",
            options.forms.empty() ? "a form" : fmt::format("{}", fmt::join(options.forms, ", ")),
            options.dtype),
        "--dtype"};
  }
  return cases;
}

Status run(const Options& options, Context& context) {
  TARN_ASSIGN(const std::vector<Case> cases, cases_of(options, &context.cancel));
  ThreadPool pool(static_cast<int>(options.threads));
  const runtime::Roof roof =
      runtime::measure_operator_roof(pool, options.dtype == "bf16" ? "bf16_dot" : "f32_fma");
  std::vector<std::vector<std::string>> rows = {{"mixer", "form", "n", "ms", "min", "max",
                                                 "us/token", "% of roof", "extra memory",
                                                 "tensors"}};
  double check = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (context.cancel.load()) return Error{ErrorCode::kCancelled, "stopped on request", {}};
    const Case& one = cases[i];
    const bool first = i == 0 || cases[i - 1].mixer != one.mixer || cases[i - 1].form != one.form;
    if (first) {
      TARN_ASSIGN(check, runtime::check_operator(*one.mixer, one.bench, &pool));
    }
    TARN_ASSIGN(const runtime::OperatorBenchResult result,
                runtime::bench_operator(*one.mixer, one.bench, &pool));
    const runtime::RoofShare share = runtime::roof_share(
        roof, result.flops, result.bytes, result.working_set_bytes, 1e-3 * result.ms_median);
    context.console.line(case_json(one, options, check, result, roof, share));
    rows.push_back(case_row(one, result, share));
    context.console.progress("bench", static_cast<int64_t>(i) + 1,
                             static_cast<int64_t>(cases.size()), "cases");
  }
  context.console.end_progress();
  context.console.text(
      fmt::format("batch {}, {}, threads: {}; peak {:.0f} GFLOP/s, RAM {:.1f} GB/s", options.batch,
                  options.dtype, options.threads, 1e-9 * roof.flops_per_second,
                  1e-9 * roof.levels.back().bytes_per_second));
  for (size_t i = 0; i < cases.size(); ++i) {
    if (i > 0 && cases[i - 1].mixer == cases[i].mixer) continue;
    context.console.text(fmt::format("{}: {}", cases[i].mixer->name, cases[i].bench.config));
  }
  context.console.table(rows);
  return {};
}

}  // namespace

void add_bench_attention(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command = program.add(selection, "attention", "Time and memory of the mixers' operators",
                                [options](Context& context) { return run(*options, context); });
  command.texts("--mixer", options->mixers, "NAME", "names, separated by commas (default: all)");
  command.choices(
      "--form", options->forms, {"forward", "backward", "forward_backward", "step"},
      "of forward, backward, forward_backward, step (default: those that exist, but the "
      "third)");
  command.integers("-n,--n,--tokens", options->tokens, 1, int64_t{1} << 30,
                   "sequence lengths, separated by commas (default: 512,4096)");
  command.choice("--dtype", options->dtype, {"f32", "bf16"},
                 "of the rows: f32 or bf16 (default: f32)");
  command.integer("--batch", options->batch, 1, 65'536, "sequences (default: 1)");
  command.integer("--heads", options->heads, 1, 4096, "of mixers with heads (default: 8)");
  command.integer("--key-dim", options->key_dim, 1, 4096, "per head (default: 64)");
  command.integer("--value-dim", options->value_dim, 1, 4096, "per head (default: 64)");
  command.text("--config", options->config, "JSON", "the mixer's config as JSON, instead of sizes");
  for (const char* size : {"--heads", "--key-dim", "--value-dim"}) {
    command.exclusive({"--config", size});
  }
  command.integer("--repeats", options->repeats, 1, 1000, "timed calls (default: 7)");
  command.integer("--seed", options->seed, 0, INT64_MAX, "of the inputs (default: 1)");
  command.threads(options->threads);
}

}  // namespace tarn::cli
