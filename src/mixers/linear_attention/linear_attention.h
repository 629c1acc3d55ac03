#pragma once

#include <mutex>

#include "base/buffer.h"
#include "kernels/feature_map.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::linear_attention {

/// Feature maps with parameters: stages before the operator, which then has the identity map.
enum class LearnedMap : uint8_t {
  kNone,
  kT2r,            ///< relu(W x)
  kHedgehog,       ///< softmax([2y, −2y]), y = W x + b, one W for all heads
  kHedgehogApart,  ///< max([softmax(y), softmax(−y)], 10⁻¹²), y = W_h x
};

/// The config object of a linear attention layer (keys as in README.md), checked.
struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t num_heads = 0;
  int64_t key_dim = 0;  ///< per head, before the feature map
  LearnedMap learned = LearnedMap::kNone;
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
  /// Channels of q and k that the operator reads: features of a learned map, else key_dim.
  int64_t operator_dim() const { return shape_of_map.input_dim; }

 private:
  mutable std::once_flag drawn_;
  mutable Buffer<float> omega_;  ///< FAVOR+ projection; empty for the other maps
};

/// φ(x) per head of a map with parameters NAME.weight (and NAME.bias, Hedgehog): `features` channels
/// (t2r) or twice those of x.
Slice learned_map(LayerBuilder& builder, const std::string& name, LearnedMap map, const Slice& x,
                  int64_t features);

}  // namespace tarn::mixers::linear_attention
