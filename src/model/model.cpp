#include "model/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/checksum.h"
#include "base/file.h"
#include "model/decoder.h"
#include "model/embedding.h"
#include "model/parameters.h"
#include "model/position.h"
#include "model/safetensors.h"
#include "model/weights.h"

namespace tarn::model {
namespace {

using mixers::ParamSpec;

constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
// Sinusoidal rows kept ready; later positions are computed when they come.
constexpr int64_t kSinusoidFloats = int64_t{1} << 22;

/// Fills the values of one parameter.
using Source = std::function<Status(const ParamSpec& spec, float* values)>;

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// The file must hold exactly the table's tensors, in their shapes.
Status check_tensors(const SafetensorsHeader& header, const std::vector<ParamSpec>& table,
                     const std::string& where) {
  std::unordered_map<std::string_view, const TensorEntry*> entries;
  for (const TensorEntry& entry : header.tensors) entries.emplace(entry.name, &entry);
  std::unordered_set<std::string_view> wanted;
  for (const ParamSpec& spec : table) {
    wanted.insert(spec.name);
    const auto found = entries.find(spec.name);
    if (found == entries.end()) {
      return corrupt("tensor " + json_quote(spec.name) + " is missing", where);
    }
    if (found->second->shape != spec.shape) {
      return corrupt(
          fmt::format("tensor {} has shape {}, its config wants {}", json_quote(spec.name),
                      shape_text(found->second->shape), shape_text(spec.shape)),
          where);
    }
  }
  for (const TensorEntry& entry : header.tensors) {
    if (!wanted.contains(entry.name)) {
      return corrupt("tensor " + json_quote(entry.name) + " is not part of this model", where);
    }
  }
  return {};
}

/// Walks the parameter table in order: reads, hashes and hands out one tensor at a time, so that
/// loading needs little more memory than the packed model.
class Assembler {
 public:
  Assembler(const ModelConfig& config, const Source& source)
      : config_(config), source_(source), table_(parameter_table(config)) {
    const std::string text = to_json(config).dump();
    hash_.update(text.data(), static_cast<int64_t>(text.size()));
  }

  Result<DecoderWeights> assemble(const kernels::PackOptions& options) {
    DecoderWeights weights;
    if (config_.modality == Modality::kFrames) {
      TARN_ASSIGN(weights.input, next_linear(options));
    } else {
      TARN_ASSIGN(weights.token, next());
    }
    if (config_.position == PositionKind::kLearned) {
      TARN_ASSIGN(weights.position, next());
    } else if (config_.position == PositionKind::kSinusoidal) {
      weights.position = sinusoids();
    }
    for (size_t i = 0; i < config_.embedding_lags.size(); ++i) {
      TARN_ASSIGN(Buffer<float> table, next());
      bytes_ += table.size_bytes();
      weights.lagged.push_back(std::move(table));
    }
    if (config_.embedding_norm) {
      TARN_ASSIGN(weights.embedding_norm, next_norm());
    }
    for (const LayerConfig& layer : config_.layers) {
      BlockWeights block;
      TARN_ASSIGN(block.norm1, next_norm());
      TARN_ASSIGN(block.mixer, next_mixer(layer, options));
      if (layer.has_mlp()) {
        TARN_ASSIGN(block.norm2, next_norm());
        TARN_ASSIGN(block.up, next_linear(options));
        TARN_ASSIGN(block.down, next_linear(options));
      }
      bytes_ += block.mixer->size_bytes() + block.up.size_bytes() + block.down.size_bytes();
      weights.blocks.push_back(std::move(block));
    }
    if (config_.final_norm) {
      TARN_ASSIGN(weights.final_norm, next_norm());
    }
    TARN_ASSIGN(weights.head, next_linear(options));
    TARN_CHECK(index_ == table_.size());
    bytes_ +=
        weights.token.size_bytes() + weights.position.size_bytes() + weights.head.size_bytes();
    if (config_.modality == Modality::kFrames) bytes_ += weights.input.size_bytes();
    return weights;
  }

  uint64_t fingerprint() const { return hash_.digest(); }
  int64_t parameter_count() const { return count_; }
  int64_t weight_bytes() const { return bytes_; }

 private:
  Result<Buffer<float>> next() {
    TARN_CHECK(index_ < table_.size());
    const ParamSpec& spec = table_[index_++];
    Buffer<float> values(element_count(spec.shape));
    TARN_RETURN_IF_ERROR(source_(spec, values.data()));
    hash_.update(values.data(), values.size_bytes());
    count_ += values.size();
    return values;
  }

  Result<NormWeights> next_norm() {
    NormWeights norm;
    TARN_ASSIGN(norm.weight, next());
    if (config_.norm == NormKind::kLayerNorm) {
      TARN_ASSIGN(norm.bias, next());
    }
    bytes_ += norm.weight.size_bytes() + norm.bias.size_bytes();
    return norm;
  }

  Result<kernels::PackedMatrix> next_linear(const kernels::PackOptions& options) {
    const std::vector<int64_t> shape = table_[index_].shape;
    TARN_ASSIGN(const Buffer<float> weight, next());
    TARN_ASSIGN(const Buffer<float> bias, next());
    return kernels::PackedMatrix::pack(weight.data(), bias.data(), shape[0], shape[1], options);
  }

  Result<std::unique_ptr<mixers::MixerWeights>> next_mixer(const LayerConfig& layer,
                                                           const kernels::PackOptions& options) {
    std::vector<Buffer<float>> values;
    std::vector<const float*> pointers;
    const size_t count = mixers::layer_params(*layer.mixer, *layer.mixer_config).size();
    for (size_t i = 0; i < count; ++i) {
      TARN_ASSIGN(Buffer<float> parameter, next());
      pointers.push_back(parameter.data());
      values.push_back(std::move(parameter));
    }
    return mixers::prepare_layer(*layer.mixer, *layer.mixer_config, pointers, options);
  }

  Buffer<float> sinusoids() const {
    const int64_t dim = config_.model_dim;
    const int64_t most = std::max<int64_t>(1, kSinusoidFloats / dim);
    const int64_t rows = config_.max_tokens > 0 ? std::min(config_.max_tokens, most) : most;
    Buffer<float> table(rows * dim);
    for (int64_t row = 0; row < rows; ++row) {
      sinusoidal_row(row, dim, sinusoid_amplitude(config_), table.data() + row * dim);
    }
    return table;
  }

  const ModelConfig& config_;
  const Source& source_;
  const std::vector<ParamSpec> table_;
  size_t index_ = 0;
  int64_t count_ = 0;
  int64_t bytes_ = 0;
  Xxh3 hash_;
};

}  // namespace

struct Model::Impl {
  ModelConfig config;
  DecoderWeights weights;
  uint64_t fingerprint = 0;
  int64_t parameter_count = 0;
  int64_t weight_bytes = 0;
  std::vector<std::vector<mixers::StateSpec>> state_specs;

  Status build(ModelConfig from, const Source& source, const Options& options) {
    config = std::move(from);
    Assembler assembler(config, source);
    TARN_ASSIGN(weights, assembler.assemble(options.pack));
    fingerprint = assembler.fingerprint();
    parameter_count = assembler.parameter_count();
    weight_bytes = assembler.weight_bytes();
    for (const LayerConfig& layer : config.layers) {
      state_specs.push_back(mixers::layer_states(*layer.mixer, *layer.mixer_config));
    }
    if (!config.embedding_lags.empty()) state_specs.push_back({input_history_spec(config)});
    return {};
  }
};

Model::Model() : impl_(std::make_unique<Impl>()) {}
Model::~Model() = default;

Result<std::shared_ptr<const Model>> Model::load(const std::string& folder, Options options) {
  const std::string config_path = folder + "/config.json";
  TARN_ASSIGN(const std::string config, read_file(config_path, kMaxConfigBytes));
  const std::string weights_path = folder + "/model.safetensors";
  TARN_ASSIGN(InputFile weights, InputFile::open(weights_path, SafetensorsLimits{}.follow_links));
  return read(config, config_path, std::move(weights), options);
}

Result<std::shared_ptr<const Model>> Model::read(const std::string& config_text,
                                                 const std::string& config_path, InputFile weights,
                                                 Options options) {
  if (options.pack.backend == kernels::GemmBackend::kOneDnn &&
      kernels::onednn_version() == "none") {
    return Error{ErrorCode::kUnsupported, "this program was built without oneDNN", config_path};
  }
  TARN_ASSIGN(const Json json,
              parse_json(config_text, config_path, {.max_bytes = kMaxConfigBytes}));
  TARN_ASSIGN(ModelConfig config, parse_model_config(json, config_path));
  TARN_ASSIGN(const SafetensorsFile file, SafetensorsFile::read(std::move(weights)));
  TARN_RETURN_IF_ERROR(check_tensors(file.header, parameter_table(config), file.file.path()));
  const Source source = [&file](const ParamSpec& spec, float* values) {
    return file.read_f32(*file.header.find(spec.name), values);
  };
  const std::shared_ptr<Model> model(new Model);
  TARN_RETURN_IF_ERROR(model->impl_->build(std::move(config), source, options));
  return std::shared_ptr<const Model>(model);
}

std::shared_ptr<const Model> Model::random(const ModelConfig& config, uint64_t seed,
                                           Options options) {
  const Source source = [seed](const ParamSpec& spec, float* values) {
    initialise(spec, seed, values);
    return Status();
  };
  const std::shared_ptr<Model> model(new Model);
  const Status status = model->impl_->build(config, source, options);
  TARN_CHECK(status.ok());
  return model;
}

const ModelConfig& Model::config() const { return impl_->config; }
uint64_t Model::fingerprint() const { return impl_->fingerprint; }
int64_t Model::parameter_count() const { return impl_->parameter_count; }
int64_t Model::weight_bytes() const { return impl_->weight_bytes; }
const std::vector<std::vector<mixers::StateSpec>>& Model::state_specs() const {
  return impl_->state_specs;
}

void Model::forward(const TokenBatch& batch, LayerStates states, mixers::Form form, Outputs outputs,
                    float* output, ThreadPool* pool, Arena& arena) const noexcept {
  run_decoder(impl_->config, impl_->weights, batch, states, form, outputs, output, pool, arena);
}

}  // namespace tarn::model
