#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/gemm.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// The layer of every mechanism whose operator inputs are plain linear maps of x:
///   [inputs side by side] = W_in x + b_in,   y = W_out · operator(inputs) + b_out
/// One wide input projection; each input is a column slice in the order of OpShape, head by head.
struct ProjectedLayerWeights final : MixerWeights {
  OpShape shape;
  kernels::PackedMatrix in;   ///< [Σ heads·dim, model_dim]
  kernels::PackedMatrix out;  ///< [model_dim, out_heads·out_dim]
  int64_t state_bytes = 0;    ///< of a sequence's first state tensor; 0: it grows, or there is none
  int64_t size_bytes() const override { return in.size_bytes() + out.size_bytes(); }
};

/// Columns of the input projection: Σ heads·dim over the operator's inputs.
int64_t input_width(const OpShape& shape);

/// in.weight, in.bias, out.weight, out.bias. Weights start uniform in ±1/√fan_in, biases at zero.
std::vector<ParamSpec> projected_layer_params(const OpShape& shape, int64_t model_dim);

/// Packs the parameters in the order of projected_layer_params; `state` is the state table.
std::unique_ptr<MixerWeights> prepare_projected_layer(const OpShape& shape, int64_t model_dim,
                                                      std::span<const float* const> params,
                                                      const std::vector<StateSpec>& state,
                                                      const kernels::PackOptions& options);

/// Runs projection, the form of `def` that `args` ask for, and the output projection.
/// One thread's steps go a dozen sequences at a time: their states are fetched while the products
/// that make their inputs run, and stay in the second-level cache until the operator takes them.
/// Scratch: rows · (input width + out_heads·out_dim) floats from the arena.
void forward_projected_layer(const MixerDef& def, const LayerArgs& args) noexcept;

}  // namespace tarn::mixers
