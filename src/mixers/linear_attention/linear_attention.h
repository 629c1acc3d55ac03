#pragma once

#include <mutex>

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
  kernels::FeatureMap shape_of_map;  ///< dimensions and functions; FAVOR+ still without projection
  bool random_features = false;      ///< FAVOR+
  uint64_t feature_seed = 0;

  /// The map, ready to use. FAVOR+ draws its projection on the first call, not while a config is
  /// read: O(K²·F), too much to spend on a file that may be refused. Threads: safe.
  kernels::FeatureMap feature_map() const;

 private:
  mutable std::once_flag drawn_;
  mutable Buffer<float> omega_;  ///< FAVOR+ projection; empty for the other maps
};

}  // namespace tarn::mixers::linear_attention
