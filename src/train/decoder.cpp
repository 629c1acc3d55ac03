#include "train/decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <span>

#include "mixers/common/torch_mixer.h"
#include "model/position.h"
#include "train/loss.h"

namespace tarn::train {
namespace {

using model::NormKind;
using model::NormPlacement;
using model::PositionKind;

size_t norm_parameters(const model::ModelConfig& config) {
  return config.norm == NormKind::kLayerNorm ? 2 : 1;
}

at::Tensor activate(kernels::Activation activation, const at::Tensor& x) {
  switch (activation) {
    case kernels::Activation::kNone: return x;
    case kernels::Activation::kRelu: return at::relu(x);
    case kernels::Activation::kGelu: return at::gelu(x, "none");
    case kernels::Activation::kGeluTanh: return at::gelu(x, "tanh");
    case kernels::Activation::kSilu: return at::silu(x);
  }
  return x;
}

}  // namespace

Decoder::Decoder(const model::ModelConfig& config, ParameterBuffers& parameters, DType precision,
                 ThreadPool* pool)
    : config_(config),
      pool_(pool),
      precision_(precision == DType::kBF16 ? at::kBFloat16 : at::kFloat) {
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    at::Tensor leaf = at::from_blob(parameters.values.data() + entry.offset, entry.spec.shape);
    leaf.set_requires_grad(true);
    leaf.mutable_grad() =
        at::from_blob(parameters.gradients.data() + entry.offset, entry.spec.shape);
    parameters_.push_back(std::move(leaf));
  }
  lagged_ = config.position == PositionKind::kLearned ? 2 : 1;
  size_t next = lagged_ + config.embedding_lags.size();
  for (const model::LayerConfig& layer : config.layers) {
    LayerIndex index;
    index.norm1 = next;
    index.mixer = next + norm_parameters(config);
    index.mixer_count = layer.mixer->param_specs(*layer.mixer_config).size();
    index.norm2 = index.mixer + index.mixer_count;
    index.mlp = index.norm2 + norm_parameters(config);
    next = index.mlp + 4;
    layers_.push_back(index);
  }
  final_norm_ = next;
  head_ = final_norm_ + (config.final_norm ? norm_parameters(config) : 0);
}

at::Tensor Decoder::add_position(const at::Tensor& x, const Batch& batch) const {
  switch (config_.position) {
    case PositionKind::kNone: return x;
    case PositionKind::kLearned: return x + parameters_[1].narrow(0, 0, batch.length);
    case PositionKind::kSinusoidal: break;
  }
  at::Tensor table = at::empty({batch.length, config_.model_dim});
  for (int64_t t = 0; t < batch.length; ++t) {
    model::sinusoidal_row(t, config_.model_dim, model::sinusoid_amplitude(config_),
                          table.mutable_data_ptr<float>() + t * config_.model_dim);
  }
  return x + table;
}

at::Tensor Decoder::embed(const Batch& batch) const {
  // from_blob takes no const data; embedding only reads it.
  const at::Tensor tokens = at::from_blob(const_cast<int32_t*>(batch.inputs.data()),
                                          {batch.count, batch.length}, at::kInt);
  at::Tensor x = add_position(at::embedding(parameters_[0], tokens), batch);
  for (size_t i = 0; i < config_.embedding_lags.size(); ++i) {
    const int64_t lag = std::min(config_.embedding_lags[i], batch.length);
    const at::Tensor earlier =
        at::constant_pad_nd(tokens.narrow(1, 0, batch.length - lag), {lag, 0}, config_.start_token);
    x = x + at::embedding(parameters_[lagged_ + i], earlier);
  }
  return x;
}

at::Tensor Decoder::norm(const at::Tensor& x, size_t first) const {
  if (config_.norm == NormKind::kRmsNorm) {
    return at::rms_norm(x, {config_.model_dim}, parameters_[first], config_.norm_eps);
  }
  return at::layer_norm(x, {config_.model_dim}, parameters_[first], parameters_[first + 1],
                        config_.norm_eps);
}

at::Tensor Decoder::mlp(const at::Tensor& x, const model::LayerConfig& layer, size_t first) const {
  const at::Tensor hidden =
      activate(layer.mlp_activation,
               mixers::torch_linear(x, parameters_[first], parameters_[first + 1], precision_));
  return mixers::torch_linear(hidden, parameters_[first + 2], parameters_[first + 3], precision_);
}

at::Tensor Decoder::block(const at::Tensor& x, size_t layer) const {
  const LayerIndex& index = layers_[layer];
  const model::LayerConfig& config = config_.layers[layer];
  const mixers::TorchMixerDef* mixer = mixers::find_torch_mixer(*config.mixer);
  const auto mix = [&](const at::Tensor& input) {
    mixers::TorchLayerArgs args;
    args.config = config.mixer_config;
    args.x = input;
    args.parameters = std::span(parameters_).subspan(index.mixer, index.mixer_count);
    args.precision = precision_;
    args.pool = pool_;
    return mixer->forward(*mixer, args);
  };
  if (config_.placement == NormPlacement::kPost) {
    const at::Tensor mixed = norm(x + mix(x), index.norm1);
    return norm(mixed + mlp(mixed, config, index.mlp), index.norm2);
  }
  const at::Tensor mixed = x + mix(norm(x, index.norm1));
  return mixed + mlp(norm(mixed, index.norm2), config, index.mlp);
}

at::Tensor Decoder::forward(const Batch& batch) const {
  at::Tensor x = embed(batch);
  for (size_t layer = 0; layer < layers_.size(); ++layer) x = block(x, layer);
  if (config_.final_norm) x = norm(x, final_norm_);
  return mixers::torch_linear(x.view({-1, config_.model_dim}), parameters_[head_],
                              parameters_[head_ + 1], at::kFloat);
}

double Decoder::forward_backward(const Batch& batch, double scale, double output_limit) const {
  const at::Tensor outputs = forward(batch);
  at::Tensor gradient = at::empty(outputs.sizes(), outputs.options());
  const double nats =
      head_loss(config_.head, outputs.size(0), outputs.const_data_ptr<float>(),
                batch.targets.data(), scale, gradient.mutable_data_ptr<float>(), pool_);
  if (output_limit > 0.0) gradient.clamp_(-output_limit * scale, output_limit * scale);
  outputs.backward(gradient);
  return nats;
}

double Decoder::evaluate(const Batch& batch) const {
  const c10::NoGradGuard no_gradients;
  const at::Tensor outputs = forward(batch);
  return head_loss(config_.head, outputs.size(0), outputs.const_data_ptr<float>(),
                   batch.targets.data(), 1.0, nullptr, pool_);
}

}  // namespace tarn::train
