#pragma once

#include <vector>

#include "mixers/mixer.h"
#include "model/config.h"

namespace tarn::model {

/// The model's parameters in file order: the single truth that training creates, the safetensors
/// file stores and the runtime reads. Linear weights are [out, in]. Names:
///   embedding.token.weight [vocabulary, D], or over frames embedding.input.weight
///   [D, features·stack] and embedding.input.bias
///   embedding.position.weight [max_tokens, D] (learned)
///   embedding.lag_L.weight [vocabulary, D] for every L of embedding_lags
///   embedding.norm.{weight,bias} (when configured)
///   layers.I.norm1.{weight,bias}  layers.I.mixer.<mixer's own>  layers.I.norm2.{weight,bias}
///   layers.I.mlp.up.{weight,bias} [hidden, D]  layers.I.mlp.down.{weight,bias} [D, hidden]
///   (norm2 and mlp where the layer has an MLP)
///   final_norm.{weight,bias} (when configured)  head.{weight,bias} [head_dim, D]
/// RMS norms have no bias. The config's caps keep every size within int64.
std::vector<mixers::ParamSpec> parameter_table(const ModelConfig& config);

/// Fills `values` with the start of `spec` from (seed, the parameter's name): a pure function, so
/// two programs that start the same model start from the same bits.
///   kConstant: scale everywhere.  kNormal: N(0, scale²).  kUniform: U(−scale, scale).
///   kGridSinusoid: row p of [rows, D] is scale times sinusoids of (p / period) in the first half
///   and of (p mod period) in the second half of the channels: a learned table that starts by
///   knowing rows and columns of an image of that width. Channel c of a half of n channels holds
///   sin (c even) or cos (c odd) of u · π·(⌊c/2⌋ + 1)/⌈n/2⌉: frequencies up to one half per step, so
///   that neighbours are told apart and a shift is a rotation of channel pairs.
///   kOrdinal: rows v < period of [rows, D] are scale times a smooth random curve of v, Σ_k w_k
///   cos(π k v/(period − 1)) r_k with w_k = 1/(1 + 0.3 k), k = 1 … 16, r_k ~ N(0, 1) per channel,
///   normalised, plus a tenth of N(0, 1): near levels start near. Further rows are N(0, scale²).
///   kMixtureBias: the head bias [3·period] of a logistic mixture of `period` components: weights
///   0, means evenly spread over [−1, 1], log scales `scale`.
void initialise(const mixers::ParamSpec& spec, uint64_t seed, float* values);

/// Number of values of a shape.
int64_t element_count(const std::vector<int64_t>& shape);

}  // namespace tarn::model
