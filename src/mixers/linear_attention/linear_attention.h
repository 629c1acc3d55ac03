#pragma once

#include "base/buffer.h"
#include "kernels/feature_map.h"
#include "mixers/mixer.h"

namespace tarn::mixers::linear_attention {

/// The config object of a linear attention layer (keys as in README.md), checked.
struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t num_heads = 0;
  int64_t key_dim = 0;    ///< per head, before the feature map
  int64_t value_dim = 0;  ///< per head
  bool causal = true;
  bool normalise = true;
  float eps = 1e-6f;
  kernels::FeatureMap feature_map;
  Buffer<float> omega;  ///< FAVOR+ projection; empty for the other maps
};

}  // namespace tarn::mixers::linear_attention
