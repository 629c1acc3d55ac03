#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/part_times.h"
#include "base/threads.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// Scratch of the calling thread; kept between calls, so a steady training loop allocates none.
Arena& training_arena();

/// One call of a layer in training.
struct TorchLayerArgs {
  std::shared_ptr<const MixerConfig> config;
  at::Tensor x;  ///< [B, T, model_dim] f32
  /// Rows of every sequence where sequences are packed: B is 1 then, T their sum. Null: dense.
  std::shared_ptr<const std::vector<int64_t>> lengths;
  at::Tensor residual;                     ///< like x, or x itself
  at::Tensor received;                     ///< [B, T, LayerRows::received], where there are such
  std::span<const at::Tensor> parameters;  ///< f32 leaves with gradients, order of layer_params
  DType precision = DType::kF32;           ///< of matrix products: kF32 or kBF16
  ThreadPool* pool = nullptr;
  PartTimes* times = nullptr;
};

struct TorchLayerResult {
  at::Tensor y;          ///< residual + layer(x): [B, T, model_dim] f32
  at::Tensor handed_on;  ///< [B, T, LayerRows::handed_on]; undefined if that is 0
};

/// Differentiable, one node of the graph; gradients of parameters are added in place.
TorchLayerResult torch_layer(const MixerDef& def, const TorchLayerArgs& args);

/// The mechanism's operator as a differentiable function: calls the same chunk (or parallel) and
/// backward kernels as the runtime. `inputs` [B, T, Σ heads·dim] holds the inputs of OpShape side
/// by side, head by head, `parameters` its parameters; the result is [B, T, out_heads·out_dim].
/// Computes in f32 whatever the types. Whole sequences from the initial state. Registered for every
/// mechanism that has one as
/// `tarn::chunk_<mechanism>(Tensor inputs, Tensor[] parameters, str config, int model_dim) -> Tensor`,
/// with the config as JSON text.
at::Tensor torch_operator(const MixerDef& def, std::shared_ptr<const MixerConfig> config,
                          const at::Tensor& inputs, at::TensorList parameters, ThreadPool* pool);

}  // namespace tarn::mixers
