#pragma once

#include <cstdint>

namespace tarn::train {

/// Negative log-likelihood, in nats, of `level` under a mixture of discretised logistics
/// (Salimans 2017, arXiv 1701.05517, one channel). params = [logits | means | log scales], each
/// [components]:
///   x = 2·level/(levels − 1) − 1,  h = 1/(levels − 1),  log scale clamped at >= −7,
///   P(level) = Σ_i π_i (σ((x + h − μ_i)/s_i) − σ((x − h − μ_i)/s_i)),
/// where the lowest level's bin reaches down to −∞ and the highest level's up to +∞.
/// `gradient` [3·components] (nullable) receives d nats / d params times `gradient_scale`.
/// Precision: double inside; exact in the tails, because
///   log(σ(a) − σ(b)) = −softplus(−a) − softplus(b) + log(1 − e^(b−a)) needs no cancellation.
/// Requires 1 <= components <= 64.
double logistic_mixture_nats(const float* params, int64_t components, int64_t level, int64_t levels,
                             double gradient_scale, float* gradient);

}  // namespace tarn::train
