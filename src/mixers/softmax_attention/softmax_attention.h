#pragma once

#include "mixers/mixer.h"

namespace tarn::mixers::softmax_attention {

/// The config object of a softmax attention layer (keys as in README.md), checked.
struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t key_dim = 0;    ///< per head
  int64_t value_dim = 0;  ///< per head
  bool causal = true;
  float scale = 1.0f;
  int64_t rotary_dim = 0;  ///< leading channels that rotate; 0: none
  double rotary_base = 10000.0;
};

}  // namespace tarn::mixers::softmax_attention
