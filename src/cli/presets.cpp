#include "cli/presets.h"

#include <array>
#include <utility>

#include "runtime/model_folder.h"

namespace tarn::cli {
namespace {

/// Name in configs/ and text, written by the build.
constexpr std::array kConfigs = {
#include "cli/preset_configs.inc"
};

Result<model::ModelConfig> config_named(const std::string& name) {
  for (const auto& [known, text] : kConfigs) {
    if (name == known) return runtime::model_config_from_text(text, name);
  }
  return invalid_argument("no preset config is called " + name, "--preset");
}

}  // namespace

std::vector<std::string> preset_names() { return {"mnist-paper", "cifar10-paper"}; }

Result<Preset> find_preset(const std::string& name) {
  const std::string data = name.substr(0, name.find('-'));
  Preset preset;
  TARN_ASSIGN(preset.linear, config_named(data + "-linear-paper"));
  TARN_ASSIGN(preset.softmax, config_named(data + "-softmax-paper"));
  return preset;
}

}  // namespace tarn::cli
