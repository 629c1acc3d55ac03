#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>

#include "base/threads.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// One call of a layer in training.
struct TorchLayerArgs {
  std::shared_ptr<const MixerConfig> config;
  at::Tensor x;                            ///< [B, T, model_dim]
  std::span<const at::Tensor> parameters;  ///< f32, in the order of param_specs
  at::ScalarType precision = at::kFloat;   ///< of matrix products: kFloat or kBFloat16
  ThreadPool* pool = nullptr;
};

/// A mechanism in torch: each folder's autograd.cpp defines `kTorchDef`, found through mixers.def.
struct TorchMixerDef {
  const MixerDef* def;
  /// The differentiable layer: [B, T, model_dim] of the precision of the matrix products.
  at::Tensor (*forward)(const TorchMixerDef& mixer, const TorchLayerArgs& args);
};

/// The torch definition of a mechanism, or null when its folder has none.
const TorchMixerDef* find_torch_mixer(const MixerDef& def);

/// x·Wᵀ + b with the operands rounded to `precision` first; differentiable.
at::Tensor torch_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        at::ScalarType precision);

/// The mechanism's operator as a differentiable function: calls the same chunk (or parallel) and
/// backward kernels as the runtime. `inputs` [B, T, Σ heads·dim] holds the inputs of OpShape side
/// by side, head by head; the result is [B, T, out_heads·out_dim]. Computes in f32 whatever the
/// type of `inputs`. Whole sequences from the initial state.
at::Tensor torch_operator(const MixerDef& def, std::shared_ptr<const MixerConfig> config,
                          const at::Tensor& inputs, ThreadPool* pool);

/// torch_operator with the config as JSON text: the body of the registered op
/// `tarn::chunk_<mechanism>(Tensor inputs, str config, int model_dim) -> Tensor`.
at::Tensor torch_operator_from_text(const MixerDef& def, const at::Tensor& inputs,
                                    const std::string& config, int64_t model_dim);

/// The layer of projected_layer.h: parameters in.weight, in.bias, out.weight, out.bias.
at::Tensor torch_projected_layer(const TorchMixerDef& mixer, const TorchLayerArgs& args);

}  // namespace tarn::mixers
