#pragma once

#include "mixers/layer_program.h"

namespace tarn::mixers::rwkv7 {

/// Stages of the layer, with heads as the operator has them; all rowwise.

/// y = x ∘ weight: parameter NAME [width], which starts as `start`.
Slice scale_channels(LayerBuilder& builder, const std::string& name, const Slice& x, Init start);

/// The key that is written: k ∘ (1 + (a − 1) ∘ weight). Parameter NAME [width].
Slice replacement_key(LayerBuilder& builder, const std::string& name, const Slice& k,
                      const Slice& a, Init start);

/// v + (first − v) ∘ share.
Slice value_residual(LayerBuilder& builder, const Slice& v, const Slice& first, const Slice& share);

/// Per head (x − mean x) / √(var x + eps) ∘ weight + bias: parameters NAME.weight, NAME.bias [width];
/// the weight starts at `start`.
Slice group_norm(LayerBuilder& builder, const std::string& name, const Slice& x, double eps,
                 float start);

/// Per head y = x + (Σ r ∘ k ∘ weight)·v: parameter NAME [width], which starts at `start`.
Slice add_bonus(LayerBuilder& builder, const std::string& name, const Slice& x, const Slice& r,
                const Slice& k, const Slice& v, float start);

}  // namespace tarn::mixers::rwkv7
