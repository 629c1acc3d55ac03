#include "train/decoder.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <span>

#include "mixers/common/torch_mixer.h"
#include "mixers/layer.h"
#include "model/position.h"
#include "runtime/ctc.h"
#include "train/ctc_loss.h"
#include "train/functions.h"
#include "train/loss.h"

namespace tarn::train {
namespace {

using model::NormKind;
using model::NormPlacement;
using model::PositionKind;

size_t norm_parameters(const model::ModelConfig& config) {
  return config.norm == NormKind::kLayerNorm ? 2 : 1;
}

at::Tensor sinusoidal_table(const model::ModelConfig& config, int64_t length) {
  at::Tensor table = at::empty({length, config.model_dim});
  for (int64_t t = 0; t < length; ++t) {
    model::sinusoidal_row(t, config.model_dim, model::sinusoid_amplitude(config),
                          table.mutable_data_ptr<float>() + t * config.model_dim);
  }
  return table;
}

}  // namespace

Decoder::Decoder(const model::ModelConfig& config, ParameterBuffers& parameters, DType precision,
                 ThreadPool* pool, PartTimes* times)
    : config_(config), pool_(pool), times_(times), precision_(precision) {
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    at::Tensor leaf = at::from_blob(parameters.values.data() + entry.offset, entry.spec.shape);
    leaf.set_requires_grad(true);
    leaf.mutable_grad() =
        at::from_blob(parameters.gradients.data() + entry.offset, entry.spec.shape);
    parameters_.push_back(std::move(leaf));
  }
  // The table of symbols, or weight and bias of the map from frames.
  const size_t inputs = config.modality == model::Modality::kFrames ? 2 : 1;
  if (config.position == PositionKind::kLearned) position_ = parameters_[inputs];
  lagged_ = inputs + (config.position == PositionKind::kLearned ? 1 : 0);
  embedding_norm_ = lagged_ + config.embedding_lags.size();
  size_t next = embedding_norm_ + (config.embedding_norm ? norm_parameters(config) : 0);
  for (const model::LayerConfig& layer : config.layers) {
    LayerIndex index;
    index.norm1 = next;
    index.mixer = next + norm_parameters(config);
    index.mixer_count = mixers::layer_params(*layer.mixer, *layer.mixer_config).size();
    index.norm2 = index.mixer + index.mixer_count;
    index.mlp = index.norm2 + norm_parameters(config);
    next = layer.has_mlp() ? index.mlp + 4 : index.norm2;
    layers_.push_back(index);
  }
  final_norm_ = next;
  head_ = final_norm_ + (config.final_norm ? norm_parameters(config) : 0);
}

at::Tensor Decoder::embed_frames(const Batch& batch) const {
  at::Tensor rows = at::empty({batch.rows(), config_.input_width()});
  std::ranges::copy(batch.frames, rows.mutable_data_ptr<float>());
  rows.set_requires_grad(c10::GradMode::is_enabled());  // so that the graph begins here
  at::Tensor x = linear(rows, linear_map(0, DType::kF32), {pool_, times_});
  if (position_.defined()) {
    std::vector<int64_t> positions;
    for (const int64_t length : batch.lengths) {
      for (int64_t t = 0; t < length; ++t) positions.push_back(t);
    }
    x = at::add(x, at::index_select(position_, 0, at::tensor(positions)));
  }
  return x.unsqueeze(0);
}

at::Tensor Decoder::embed(const Batch& batch) const {
  const int64_t longest =
      batch.is_packed() ? *std::ranges::max_element(batch.lengths) : batch.length;
  if (config_.position == PositionKind::kSinusoidal &&
      (!position_.defined() || position_.size(0) < longest)) {
    position_ = sinusoidal_table(config_, longest);
  }
  if (batch.is_packed()) {
    const at::Tensor x = embed_frames(batch);
    return config_.embedding_norm ? norm(x, embedding_norm_) : x;
  }
  EmbeddingArgs args;
  args.count = batch.count;
  args.length = batch.length;
  args.inputs = batch.inputs.data();
  args.start_token = static_cast<int32_t>(config_.start_token);
  args.lags = config_.embedding_lags;
  args.tables = {parameters_[0]};
  for (size_t i = 0; i < args.lags.size(); ++i) args.tables.push_back(parameters_[lagged_ + i]);
  args.position = position_;
  const at::Tensor x = embedding(args, {pool_, times_});
  return config_.embedding_norm ? norm(x, embedding_norm_) : x;
}

at::Tensor Decoder::norm(const at::Tensor& x, size_t first) const {
  const bool rms = config_.norm == NormKind::kRmsNorm;
  return train::norm(x, parameters_[first], rms ? at::Tensor() : parameters_[first + 1],
                     config_.norm_eps, {pool_, times_});
}

mixers::TrainedLinear Decoder::linear_map(size_t first, DType precision) const {
  return train::linear_map(parameters_[first], parameters_[first + 1], precision);
}

at::Tensor Decoder::block(const at::Tensor& x, size_t layer,
                          const std::shared_ptr<const std::vector<int64_t>>& lengths,
                          at::Tensor& handed_on) const {
  const LayerIndex& index = layers_[layer];
  const model::LayerConfig& config = config_.layers[layer];
  const bool pre = config_.placement == NormPlacement::kPre;
  mixers::TorchLayerArgs args;
  args.config = config.mixer_config;
  args.x = pre ? norm(x, index.norm1) : x;
  args.lengths = lengths;
  args.residual = x;
  args.received = handed_on;
  args.parameters = std::span(parameters_).subspan(index.mixer, index.mixer_count);
  args.precision = precision_;
  args.pool = pool_;
  args.times = times_;
  const mixers::TorchLayerResult result = mixers::torch_layer(*config.mixer, args);
  if (result.handed_on.defined()) handed_on = result.handed_on;
  const at::Tensor mixed = pre ? result.y : norm(result.y, index.norm1);
  if (!config.has_mlp()) return mixed;
  const at::Tensor out =
      mlp(pre ? norm(mixed, index.norm2) : mixed, mixed, linear_map(index.mlp, precision_),
          config.mlp_activation, linear_map(index.mlp + 2, precision_), {pool_, times_});
  return pre ? out : norm(out, index.norm2);
}

at::Tensor Decoder::forward(const Batch& batch) const {
  at::Tensor x = embed(batch);
  at::Tensor handed_on;
  const auto lengths =
      batch.is_packed() ? std::make_shared<const std::vector<int64_t>>(batch.lengths) : nullptr;
  for (size_t layer = 0; layer < layers_.size(); ++layer) x = block(x, layer, lengths, handed_on);
  if (config_.final_norm) x = norm(x, final_norm_);
  return linear(x, linear_map(head_, DType::kF32), {pool_, times_});
}

double Decoder::loss(const Batch& batch, const at::Tensor& outputs, double scale,
                     float* gradient) const {
  if (config_.head.kind == model::HeadKind::kCtc) return ctc_nats(batch, outputs, scale, gradient);
  return head_loss(config_.head, outputs.size(0), outputs.const_data_ptr<float>(),
                   batch.targets.data(), scale, gradient, pool_);
}

double Decoder::forward_backward(const Batch& batch, double scale, double output_limit) const {
  const at::Tensor outputs = forward(batch);
  at::Tensor gradient = at::empty(outputs.sizes(), outputs.options());
  double nats = 0.0;
  {
    const PartTimer timer(times_, "loss");
    nats = loss(batch, outputs, scale, gradient.mutable_data_ptr<float>());
    if (output_limit > 0.0) gradient.clamp_(-output_limit * scale, output_limit * scale);
  }
  outputs.backward(gradient);
  return nats;
}

Evaluation Decoder::evaluate(const Batch& batch) const {
  const c10::NoGradGuard no_gradients;
  const at::Tensor outputs = forward(batch);
  Evaluation result;
  result.nats = loss(batch, outputs, 1.0, nullptr);
  const float* rows = outputs.const_data_ptr<float>();
  for (size_t i = 0; i < batch.lengths.size(); ++i) {
    const std::vector<int32_t> labels =
        runtime::ctc_greedy(batch.lengths[i], config_.head.classes, rows);
    result.edits += runtime::edit_distance(batch.labels[i], labels);
    rows += batch.lengths[i] * config_.head.classes;
  }
  return result;
}

}  // namespace tarn::train
