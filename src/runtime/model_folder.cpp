#include "runtime/model_folder.h"

#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "model/parameters.h"
#include "model/safetensors.h"
#include "runtime/process_memory.h"

namespace tarn::runtime {

Status write_initial_model(const model::ModelConfig& config, uint64_t seed, DType dtype,
                           const std::string& folder) {
  const std::string config_path = folder + "/config.json";
  const std::string weights_path = folder + "/model.safetensors";
  for (const std::string& path : {config_path, weights_path}) {
    if (path_exists(path)) {
      return invalid_argument("the file exists already; give a new folder, or remove it", path);
    }
  }
  const std::vector<mixers::ParamSpec> table = model::parameter_table(config);
  int64_t bytes = 0;  // no overflow: a config's parameters number at most 2^36
  for (const mixers::ParamSpec& spec : table) bytes += 4 * model::element_count(spec.shape);
  if (const int64_t limit = machine_memory_bytes(); bytes > limit) {
    return Error{ErrorCode::kResource,
                 "the weights would take " + std::to_string(bytes) +
                     " bytes, more than this machine's " + std::to_string(limit),
                 folder};
  }
  std::vector<Buffer<float>> values;
  std::vector<model::TensorToWrite> tensors;
  for (const mixers::ParamSpec& spec : table) {
    values.emplace_back(model::element_count(spec.shape));
    model::initialise(spec, seed, values.back().data());
    tensors.push_back({spec.name, spec.shape, values.back().data(), dtype});
  }
  TARN_RETURN_IF_ERROR(make_directories(folder));
  TARN_RETURN_IF_ERROR(write_file_atomic(config_path, model::to_json(config).dump(2) + "\n"));
  return model::write_safetensors(weights_path, tensors, {{"format", "pt"}});
}

Result<model::ModelConfig> read_model_config(const std::string& path) {
  TARN_ASSIGN(const std::string text, read_file(path, JsonLimits{}.max_bytes));
  return model_config_from_text(text, path);
}

Result<model::ModelConfig> model_config_from_text(const std::string& text,
                                                  const std::string& where) {
  TARN_ASSIGN(const Json document, parse_json(text, where));
  const Json* inner = document.find("model");
  if (inner != nullptr) return model::parse_model_config(*inner, where + ": model");
  return model::parse_model_config(document, where);
}

}  // namespace tarn::runtime
