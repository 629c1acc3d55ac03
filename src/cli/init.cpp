#include <memory>

#include "cli/command.h"
#include "runtime/model_folder.h"

namespace tarn::cli {
namespace {

struct Options {
  std::string config;
  std::string out;
  int64_t seed = 0;
  std::string dtype = "f32";
};

Status run(const Options& options, Context& context) {
  TARN_ASSIGN(const model::ModelConfig config, runtime::read_model_config(options.config));
  TARN_RETURN_IF_ERROR(runtime::write_initial_model(
      config, static_cast<uint64_t>(options.seed),
      options.dtype == "bf16" ? DType::kBF16 : DType::kF32, options.out));
  Json json;
  json.set("out", options.out);
  json.set("seed", options.seed);
  context.console.document(json);
  context.console.text("wrote " + options.out);
  return {};
}

}  // namespace

void add_init(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command =
      program.add(selection, "init", "Write a model folder with initial (random) weights",
                  [options](Context& context) { return run(*options, context); });
  command.positional("config", options->config, "CONFIG",
                     "a model's config.json, or a training config");
  command.positional("out", options->out, "OUT", "the folder to make");
  command.integer("--seed", options->seed, 0, INT64_MAX, "of the weights (default: 0)");
  command.choice("--dtype", options->dtype, {"f32", "bf16"}, "f32 (default) or bf16");
}

}  // namespace tarn::cli
