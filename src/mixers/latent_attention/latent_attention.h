#pragma once

#include "mixers/mixer.h"

namespace tarn::mixers::latent_attention {

/// The config object of a layer (keys as in README.md), checked.
struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t num_heads = 0;
  int64_t num_latents = 0;  ///< per head
  int64_t key_dim = 0;      ///< per head
  int64_t value_dim = 0;    ///< per head
  double scale = 1.0;
  bool causal = true;
};

inline const Config& config_of(const MixerConfig* config) {
  return static_cast<const Config&>(*config);
}

/// The definition in double precision. Per head and latent l, over the tokens j seen so far (all of
/// them when not causal):
///   p_lj = softmax_j(s·c_l·k_j)   κ_l = Σ p_lj k_j   z_l = Σ p_lj v_j
///   o_t = Σ_l softmax_l(s·q_t·κ_l) z_l
/// Shapes: q, k [rows, H, K], v [rows, H, V]; latents c [H, L, K]; state log_sum [H, L], k [H, L, K],
///   v [H, L, V] (in/out): log Σ_j exp(s·c_l·k_j), κ and z.
void recurrent_forward(const OpArgs<double>& args);

}  // namespace tarn::mixers::latent_attention
