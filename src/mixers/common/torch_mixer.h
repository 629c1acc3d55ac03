#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/part_times.h"
#include "base/threads.h"
#include "kernels/product.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// A linear map in training: y = x·Wᵀ + b by the kernels of kernels/product.h. Both tensors are
/// leaves whose gradients exist; backward passes add to them in place, so autograd has nothing to
/// sum. Weights are packed anew for every pass, because every update changes them.
struct TorchLinear {
  at::Tensor weight;              ///< [out, in] f32
  at::Tensor bias;                ///< [out]
  DType precision = DType::kF32;  ///< of the product's operands: kF32 or kBF16

  double flops(int64_t rows) const;  ///< of one product
  /// The right operand of x·Wᵀ, and of dy·W.
  kernels::PackedOperand pack(ThreadPool* pool, Arena& arena) const;
  kernels::PackedOperand pack_for_gradient(ThreadPool* pool, Arena& arena) const;
  /// Adds dyᵀ·x and the sums of dy's columns to the gradients.
  void add_gradient(int64_t rows, const float* dy, const float* x, ThreadPool* pool) const;
};

/// Scratch of the calling thread; kept between calls, so a steady training loop allocates none.
Arena& training_arena();

/// One call of a layer in training.
struct TorchLayerArgs {
  std::shared_ptr<const MixerConfig> config;
  at::Tensor x;                            ///< [B, T, model_dim] f32
  at::Tensor residual;                     ///< like x, or x itself
  std::span<const at::Tensor> parameters;  ///< f32 leaves, in the order of param_specs
  DType precision = DType::kF32;           ///< of matrix products: kF32 or kBF16
  ThreadPool* pool = nullptr;
  PartTimes* times = nullptr;
};

/// A mechanism in torch: each folder's autograd.cpp defines `kTorchDef`, found through mixers.def.
struct TorchMixerDef {
  const MixerDef* def;
  /// residual + layer(x), differentiable: [B, T, model_dim] f32.
  at::Tensor (*forward)(const TorchMixerDef& mixer, const TorchLayerArgs& args);
};

/// The torch definition of a mechanism, or null when its folder has none.
const TorchMixerDef* find_torch_mixer(const MixerDef& def);

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
