#include "train/checkpoint.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>
#include <vector>

#include "base/file.h"
#include "model/safetensors.h"

namespace tarn::train {
namespace {

constexpr const char* kFormat = "tarn-checkpoint-1";
constexpr const char* kFirstMoment = "first_moment/";
constexpr const char* kSecondMoment = "second_moment/";
constexpr const char* kAverage = "average/";

using Metadata = std::vector<std::pair<std::string, std::string>>;

void add_tensors(const std::string& prefix, const ParameterBuffers& parameters,
                 const Buffer<float>& values, DType dtype,
                 std::vector<model::TensorToWrite>& tensors) {
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    tensors.push_back(
        {prefix + entry.spec.name, entry.spec.shape, values.data() + entry.offset, dtype});
  }
}

/// The config without the keys that may change between the runs of one training.
std::string fixed_part(const TrainConfig& config) {
  TrainConfig copy = config;
  const TrainingConfig defaults;
  copy.training.updates = defaults.updates;
  copy.training.evaluate_every = defaults.evaluate_every;
  copy.training.evaluate_limit = defaults.evaluate_limit;
  copy.training.checkpoint_every_seconds = defaults.checkpoint_every_seconds;
  copy.training.log_every = defaults.log_every;
  copy.training.export_dtype = defaults.export_dtype;
  return to_json(copy).dump();
}

const std::string* find(const Metadata& metadata, std::string_view key) {
  for (const auto& [name, value] : metadata) {
    if (name == key) return &value;
  }
  return nullptr;
}

template <class T>
Status read_number(const Metadata& metadata, const char* key, const std::string& where, T& value) {
  const std::string* text = find(metadata, key);
  const char* end = text == nullptr ? nullptr : text->data() + text->size();
  if (text == nullptr || std::from_chars(text->data(), end, value).ptr != end || value < 0) {
    return corrupt(fmt::format("metadata \"{}\" is missing or no number >= 0", key), where);
  }
  return {};
}

Status check_config(const Metadata& metadata, const TrainConfig& config, const std::string& where) {
  const std::string* text = find(metadata, "config");
  if (text == nullptr) return corrupt("metadata \"config\" is missing", where);
  TARN_ASSIGN(const Json saved, parse_json(*text, where));
  TARN_ASSIGN(const Json wanted, parse_json(fixed_part(config), where));
  for (const char* part : {"model", "data", "training"}) {
    const Json* object = saved.find(part);
    if (object == nullptr) return corrupt(fmt::format("its config has no \"{}\"", part), where);
    for (const Json::Member& member : *wanted.find(part)->as_object()) {
      const Json* value = object->find(member.first);
      if (value == nullptr || *value != member.second) {
        return invalid_argument(
            fmt::format(
                "was written with another {}.{}: {} there, {} now; resume with the same config and "
                "the same --set flags",
                part, member.first, value == nullptr ? "nothing" : json_quote(value->dump()),
                json_quote(member.second.dump())),
            where);
      }
    }
  }
  return {};
}

Status read_tensors(const model::SafetensorsFile& file, const std::string& prefix,
                    const ParameterBuffers& parameters, Buffer<float>& values) {
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    const model::TensorEntry* tensor = file.header.find(prefix + entry.spec.name);
    if (tensor == nullptr || tensor->shape != entry.spec.shape || tensor->dtype != DType::kF32) {
      return corrupt("tensor \"" + prefix + entry.spec.name + "\" is missing or of another shape",
                     file.file.path());
    }
    TARN_RETURN_IF_ERROR(file.read_f32(*tensor, values.data() + entry.offset));
  }
  return {};
}

}  // namespace

Status save_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                       const TrainConfig& config, const ParameterBuffers& parameters,
                       Optimiser& optimiser, const Buffer<float>& average) {
  if (const size_t slash = path.rfind('/'); slash != std::string::npos) {
    TARN_RETURN_IF_ERROR(make_directories(path.substr(0, slash)));
  }
  std::vector<model::TensorToWrite> tensors;
  add_tensors("", parameters, parameters.values, DType::kF32, tensors);
  add_tensors(kFirstMoment, parameters, optimiser.first_moment(), DType::kF32, tensors);
  add_tensors(kSecondMoment, parameters, optimiser.second_moment(), DType::kF32, tensors);
  if (average.size() > 0) add_tensors(kAverage, parameters, average, DType::kF32, tensors);
  const Metadata metadata{{"format", kFormat},
                          {"update", std::to_string(checkpoint.update)},
                          {"optimiser_updates", std::to_string(optimiser.updates())},
                          {"tokens_seen", std::to_string(checkpoint.tokens_seen)},
                          {"log_bytes", std::to_string(checkpoint.log_bytes)},
                          {"seconds", fmt::format("{:.3f}", checkpoint.seconds)},
                          {"config", fixed_part(config)}};
  return model::write_safetensors(path, tensors, metadata);
}

Result<Checkpoint> load_checkpoint(const std::string& path, const TrainConfig& config,
                                   ParameterBuffers& parameters, Optimiser& optimiser,
                                   Buffer<float>& average) {
  TARN_ASSIGN(const model::SafetensorsFile file, model::SafetensorsFile::open(path));
  const Metadata& metadata = file.header.metadata;
  const std::string* format = find(metadata, "format");
  if (format == nullptr || *format != kFormat) {
    return corrupt(std::string("is no training checkpoint of format ") + kFormat, path);
  }
  TARN_RETURN_IF_ERROR(check_config(metadata, config, path));
  Checkpoint checkpoint;
  TARN_RETURN_IF_ERROR(read_number(metadata, "update", path, checkpoint.update));
  TARN_RETURN_IF_ERROR(read_number(metadata, "tokens_seen", path, checkpoint.tokens_seen));
  TARN_RETURN_IF_ERROR(read_number(metadata, "log_bytes", path, checkpoint.log_bytes));
  TARN_RETURN_IF_ERROR(read_number(metadata, "seconds", path, checkpoint.seconds));
  TARN_RETURN_IF_ERROR(read_tensors(file, "", parameters, parameters.values));
  TARN_RETURN_IF_ERROR(read_tensors(file, kFirstMoment, parameters, optimiser.first_moment()));
  TARN_RETURN_IF_ERROR(read_tensors(file, kSecondMoment, parameters, optimiser.second_moment()));
  if (average.size() > 0) {
    TARN_RETURN_IF_ERROR(read_tensors(file, kAverage, parameters, average));
  }
  int64_t optimiser_updates = 0;
  TARN_RETURN_IF_ERROR(read_number(metadata, "optimiser_updates", path, optimiser_updates));
  optimiser.set_updates(optimiser_updates);
  return checkpoint;
}

Status export_model(const std::string& folder, const TrainConfig& config,
                    const ParameterBuffers& parameters, const Buffer<float>& values,
                    const Checkpoint& checkpoint) {
  std::vector<model::TensorToWrite> tensors;
  add_tensors("", parameters, values, config.training.export_dtype, tensors);
  const Metadata metadata{{"format", "pt"},
                          {"producer", "tarn-train"},
                          {"updates", std::to_string(checkpoint.update)},
                          {"tokens_seen", std::to_string(checkpoint.tokens_seen)}};
  TARN_RETURN_IF_ERROR(
      write_file_atomic(folder + "/config.json", model::to_json(config.model).dump(2) + "\n"));
  return model::write_safetensors(folder + "/model.safetensors", tensors, metadata);
}

}  // namespace tarn::train
