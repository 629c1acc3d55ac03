#include <fmt/format.h>

#include "base/threads.h"
#include "cli/command.h"
#include "cli/trainer_program.h"
#include "kernels/gemm.h"
#include "kernels/targets.h"
#include "mixers/mixer.h"

namespace tarn::cli {
namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

Status run(Context& context) {
  const std::vector<std::string> compiled = kernels::compiled_targets();
  const std::vector<std::string> supported = kernels::supported_targets();
  const std::string chosen = supported.empty() ? "none" : supported.front();
  const std::string trainer = find_trainer();
  std::vector<std::string> names;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) names.push_back(mixer->name);

  Json json;
  json.set("version", TARN_VERSION);
  json.set("compiler", kCompiler);
  json.set("cpu", kernels::cpu_model_name());
  json.set("simd_compiled", Json::Array(compiled.begin(), compiled.end()));
  json.set("simd_chosen", chosen);
  json.set("amx_bf16", kernels::has_amx_bf16());
  json.set("onednn", kernels::onednn_version());
  json.set("libtorch", !trainer.empty());
  json.set("tarn_train", trainer.empty() ? Json() : Json(trainer));
  json.set("threads", available_threads());
  json.set("mixers", Json::Array(names.begin(), names.end()));
  context.console.document(json);

  context.console.text(fmt::format("version        {}", TARN_VERSION));
  context.console.text(fmt::format("compiler       {}", kCompiler));
  context.console.text(fmt::format("CPU            {}", kernels::cpu_model_name()));
  context.console.text(fmt::format("SIMD compiled  {}", fmt::join(compiled, " ")));
  context.console.text(fmt::format("SIMD chosen    {}", chosen));
  context.console.text(fmt::format("AMX bf16       {}", kernels::has_amx_bf16() ? "yes" : "no"));
  context.console.text(fmt::format("oneDNN         {}", kernels::onednn_version()));
  context.console.text(fmt::format(
      "libtorch       {}", trainer.empty() ? "no (tarn-train is neither beside tarn nor on PATH)"
                                           : "yes (" + trainer + ")"));
  context.console.text(fmt::format("threads        {}", available_threads()));
  context.console.text(fmt::format("mixers         {}", fmt::join(names, " ")));
  return {};
}

}  // namespace

void add_doctor(Command& program, Selection& selection) {
  program.add(selection, "doctor", "What this build and this machine can do", run);
}

}  // namespace tarn::cli
