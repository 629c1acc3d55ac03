#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace tarn::cli {

/// Names of the presets: the paper's image models.
std::vector<std::string> preset_names();

/// A preset's two models, from the training configs of configs/ as they were when the program was
/// built: linear attention, and the same model with softmax attention.
struct Preset {
  model::ModelConfig linear;
  model::ModelConfig softmax;
};
Result<Preset> find_preset(const std::string& name);

}  // namespace tarn::cli
