#pragma once

#include "mixers/layer_program.h"

namespace tarn::mixers::kimi_delta_attention {

/// The gate of newer models: g[h] = lower_bound · σ(e^(a_log[h]) · (x[h] + dt_bias[h])), in
/// (lower_bound, 0). Parameters a_log [heads], dt_bias [heads·dim].
Slice bounded_decay(LayerBuilder& builder, const Slice& x, double lower_bound);

}  // namespace tarn::mixers::kimi_delta_attention
