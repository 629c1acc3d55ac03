#pragma once

#include <limits>
#include <string>

#include "kernels/gates.h"
#include "mixers/layer_program.h"

namespace tarn::mixers {

/// Stages that several mechanisms put around their operators. Each takes columns of a value and
/// returns a new one; the layer's forms, its gradient and its state follow. Per row unless said;
/// every function has a double-precision twin that tests compare with.

using kernels::GateFunction;

/// y = scale · f(x).
Slice apply_function(LayerBuilder& builder, GateFunction function, const Slice& x,
                     double scale = 1.0);

/// y = x · f(gate); x and gate of equal width.
Slice apply_gate(LayerBuilder& builder, GateFunction function, const Slice& x, const Slice& gate);

/// y[h] = x[h] + d[h]·skip[h]: parameter NAME [heads], starts at 1.
Slice add_skip(LayerBuilder& builder, const std::string& name, const Slice& x, const Slice& skip);

/// Depthwise causal convolution over tokens, then SiLU: y_t[c] = silu(Σ_w weight[c, w]·x_{t−W+1+w}[c]
/// (+ bias[c])). Parameters NAME.weight [channels, W], NAME.bias [channels]. State NAME [W − 1,
/// channels]: the last inputs, oldest first. Not rowwise.
Slice short_convolution(LayerBuilder& builder, const std::string& name, const Slice& x,
                        int64_t width, bool bias);

/// `count` blends of each row with the one before it, side by side: y_t[i] = x_t + mix[i]·(x_{t−1} −
/// x_t). Parameter `mix` [count, width], or [width] if count is 1, which starts as `start`. State
/// `shift` [width]: the last row, zeros before the first. Not rowwise.
Slice token_shift(LayerBuilder& builder, const Slice& x, int64_t count, Init start);

/// Per head y = x / √(Σ x² + eps) (flash-linear-attention's l2norm), or, with `clamped`,
/// x / max(√Σ x², eps) (torch's normalize).
Slice l2_norm(LayerBuilder& builder, const Slice& x, double eps, bool clamped = false);

/// Per head y = x / √(mean x² + eps) · weight: parameter NAME.weight [dim], one for all heads, or
/// [heads·dim] when `own_weights`.
Slice rms_norm(LayerBuilder& builder, const std::string& name, const Slice& x, double eps,
               bool own_weights = false);

/// Rotary position embedding of the first `rotary_dim` channels of each head (half-split pairs).
/// Not rowwise: reads positions.
Slice rotate_positions(LayerBuilder& builder, const Slice& x, int64_t rotary_dim, double base);

/// Δ = min(max(softplus(x + NAME), low), high): parameter NAME [width], which starts so that Δ is
/// log-uniform in [0.001, 0.1] (Gu 2023, arXiv 2312.00752, section 3.6).
Slice step_size(LayerBuilder& builder, const std::string& name, const Slice& x, double low = 0.0,
                double high = std::numeric_limits<double>::infinity());

/// g[h] = −exp(NAME[h])·Δ[h] ≤ 0: parameter NAME [heads], starts at log u, u uniform in [1, 16].
Slice log_decay(LayerBuilder& builder, const std::string& name, const Slice& step);

}  // namespace tarn::mixers
