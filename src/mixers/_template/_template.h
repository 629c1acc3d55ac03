#pragma once

#include "mixers/mixer.h"

namespace tarn::mixers::_template {

/// The config object of a layer (keys as in README.md), checked.
struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t num_heads = 0;
  int64_t value_dim = 0;  ///< per head
  float decay = 0.9f;     ///< a: what is left of the state after one token
};

inline const Config& config_of(const MixerConfig* config) {
  return static_cast<const Config&>(*config);
}

/// Exponential moving average read through a gate: the token loop, in double precision.
/// Recurrence:  s_t = a·s_{t-1} + (1 − a)·v_t      o_t = q_t ∘ s_t
/// Shapes:      inputs q, v [rows, H, V]; out [rows, H, V]; state s [H, V] (in/out)
void recurrent_forward(const OpArgs<double>& args);

/// The same in f32, one pass over the tokens. O(T·V) per head; no scratch.
void chunk_forward(const OpArgs<float>& args) noexcept;

/// The same with every token computed from the values alone: O(T²·V) per head; no scratch.
void parallel_forward(const OpArgs<float>& args) noexcept;

/// One token per sequence. O(V) per head.
void step(const OpArgs<float>& args) noexcept;

/// Gradient of chunk_forward. O(T·V) per head; scratch V floats per thread.
void chunk_backward(const OpBackwardArgs& args) noexcept;

}  // namespace tarn::mixers::_template
