#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "model/config.h"

namespace tarn::runtime {

/// How a token is drawn from a head's output.
struct SamplerOptions {
  bool greedy = false;       ///< the most likely choice; draws no random number
  float temperature = 1.0f;  ///< > 0; divides the logits (and multiplies the noise of a mixture)
  int64_t top_k = 0;         ///< > 0: only the k most likely classes (or mixture components)
  float top_p = 1.0f;        ///< < 1: only the smallest set of classes that has this probability

  bool operator==(const SamplerOptions&) const = default;
};

/// Errors name the option: temperature not in (0, 1e6], top_k < 0, top_p not in (0, 1].
Status validate(const SamplerOptions& options);

/// Draws tokens from head outputs. Holds scratch memory, so that a draw allocates nothing; one per
/// thread. A draw depends on options, head output and the state of `rng` alone.
class Sampler {
 public:
  /// `options` must be valid.
  Sampler(const model::HeadConfig& head, const SamplerOptions& options);

  /// One token from `output` (head.output_dim() values).
  /// Categorical: softmax(logits / temperature) cut to top_k, then to top_p, by inversion of the
  /// cumulative sum in double precision; ties are ranked by the lower index. Greedy: the first
  /// largest logit. A logit of −inf is a class that is never drawn.
  /// Mixture (Salimans 2017, arXiv 1701.05517, one channel): a component from its softmax weights
  /// as above, x = mean + temperature·exp(max(log scale, −7))·logit(u), clamped to [−1, 1], level
  /// round((x + 1)/2·(levels − 1)). Greedy: the likeliest component's mean.
  /// Random words consumed: none if greedy, 2 for a class, 3 for a mixture.
  /// Errors: NaN or +inf in the output; no class with a finite logit.
  Result<int32_t> draw(std::span<const float> output, Philox& rng);

  const SamplerOptions& options() const { return options_; }

 private:
  Result<int64_t> draw_class(std::span<const float> logits, Philox& rng);

  model::HeadConfig head_;
  SamplerOptions options_;
  std::vector<double> weights_;
  std::vector<int32_t> order_;
};

/// Smallest log scale of a mixture component: smaller values count as this one.
inline constexpr double kMinLogScale = -7.0;

/// log softmax(logits)[target], natural logarithm, in double precision.
double categorical_log_prob(std::span<const float> logits, int64_t target);

/// Log probability (natural) of level `target` of `levels` under a mixture of discretised
/// logistics; params = [C weight logits | C means | C log scales]. Source: Salimans 2017
/// (arXiv 1701.05517), eq. 2, without colour channels. Double precision. With
///   h = 1/(levels − 1),  x = 2·target·h − 1,  s = max(log scale, −7),  i = exp(−s),
///   a = (x + h − mean)·i,  b = (x − h − mean)·i,
/// a component's log mass is
///   target = 0:           −softplus(−a)                    (everything below x + h)
///   target = levels − 1:  −softplus(b)                     (everything above x − h)
///   else:                 −softplus(−a) − softplus(b) + log(−expm1(−2·h·i)),
/// which is log(sigmoid(a) − sigmoid(b)) without cancellation, because
///   sigmoid(a) − sigmoid(b) = sigmoid(a)·sigmoid(−b)·(1 − exp(−(a − b))).
/// The result is logsumexp_c(log_softmax(weights)_c + log mass_c).
double mixture_log_prob(std::span<const float> params, int64_t target, int64_t levels);

/// Whichever of the two the head asks for; target in [0, head.classes).
double head_log_prob(const model::HeadConfig& head, std::span<const float> output, int64_t target);

/// A token and the natural logarithm of its probability.
struct TokenLogProb {
  int32_t token = 0;
  double log_prob = 0;
  bool operator==(const TokenLogProb&) const = default;
};

/// A drawn token among the likeliest of its head output.
struct DrawnLogProbs {
  TokenLogProb drawn;
  std::vector<TokenLogProb> likeliest;  ///< first the likeliest, of equals the lower token
  bool operator==(const DrawnLogProbs&) const = default;
};

/// head_log_prob() of `drawn` and of the `most` likeliest tokens, without those of probability 0: what
/// the model says, whatever SamplerOptions made of it. Cost: two passes over a categorical head's
/// classes; of a mixture one component sum per level, none but that of `drawn` if `most` is 0.
DrawnLogProbs drawn_log_probs(const model::HeadConfig& head, std::span<const float> output,
                              int32_t drawn, int64_t most);

}  // namespace tarn::runtime
