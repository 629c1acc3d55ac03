#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/part_times.h"
#include "base/threads.h"
#include "mixers/common/trained_linear.h"
#include "model/config.h"
#include "runtime/edit_distance.h"
#include "train/batches.h"
#include "train/parameters.h"

namespace tarn::train {

/// What a model is worth on some sequences.
struct Evaluation {
  double nats = 0.0;          ///< Σ over what counts
  runtime::EditCounts edits;  ///< over frames: of the labels of the most probable paths
};

/// The model of a config in torch: same parameters, same forward as the runtime's Model, up to
/// rounding (tests/parity). Parameters and gradients live in the caller's buffers, which torch
/// sees as views; backward adds into `gradients`.
class Decoder {
 public:
  /// `parameters` and `pool` must outlive the decoder. kBF16 rounds the operands of matrix products
  /// to bf16; their sums, the residual stream, norms, operators and the whole head stay f32.
  /// `times` (nullable) learns how long each part takes.
  Decoder(const model::ModelConfig& config, ParameterBuffers& parameters, DType precision,
          ThreadPool* pool, PartTimes* times = nullptr);

  /// Head outputs [batch.rows(), head.output_dim()], f32.
  at::Tensor forward(const Batch& batch) const;

  /// Adds the gradient of Σ nats·scale to the buffers and returns Σ nats over what counts.
  /// `output_limit` > 0 holds the gradient of each head output within ±output_limit·scale.
  double forward_backward(const Batch& batch, double scale, double output_limit) const;
  /// Records nothing.
  Evaluation evaluate(const Batch& batch) const;

 private:
  at::Tensor embed(const Batch& batch) const;
  at::Tensor embed_frames(const Batch& batch) const;
  /// Σ nats, and their gradient times `scale` where `gradient` is not null.
  double loss(const Batch& batch, const at::Tensor& outputs, double scale, float* gradient) const;
  at::Tensor norm(const at::Tensor& x, size_t first) const;
  mixers::TrainedLinear linear_map(size_t first, DType precision) const;
  /// `lengths`: of packed sequences, or null. `handed_on`: the rows that layers hand on to each other,
  /// replaced if this layer does.
  at::Tensor block(const at::Tensor& x, size_t layer,
                   const std::shared_ptr<const std::vector<int64_t>>& lengths,
                   at::Tensor& handed_on) const;

  const model::ModelConfig& config_;
  ThreadPool* pool_;
  PartTimes* times_;
  DType precision_;
  std::vector<at::Tensor> parameters_;  ///< leaves, in the order of the table
  mutable at::Tensor position_;  ///< learned, or the sinusoidal rows needed so far, or undefined
  struct LayerIndex {
    size_t norm1, mixer, mixer_count, norm2, mlp;  ///< the last two where there is an MLP
  };
  std::vector<LayerIndex> layers_;
  size_t lagged_ = 0;  ///< first table of embedding_lags
  size_t embedding_norm_ = 0;
  size_t final_norm_ = 0;
  size_t head_ = 0;
};

}  // namespace tarn::train
