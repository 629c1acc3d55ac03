#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "model/config.h"

namespace tarn::runtime {

/// Writes a model folder (config.json, model.safetensors) with the initial weights of `config`: a
/// pure function of config and seed. `dtype` is kF32 or kBF16. The folder is made if it is missing.
/// Errors: kInvalidArgument when it already holds a model, kIo when it cannot be written.
Status write_initial_model(const model::ModelConfig& config, uint64_t seed, DType dtype,
                           const std::string& folder);

/// Reads the model config of a file: a model's config.json, or a training config, whose "model"
/// object counts.
Result<model::ModelConfig> read_model_config(const std::string& path);
/// The same from the file's text; `where` names it in messages.
Result<model::ModelConfig> model_config_from_text(const std::string& text,
                                                  const std::string& where);

}  // namespace tarn::runtime
