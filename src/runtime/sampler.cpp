#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/check.h"

namespace tarn::runtime {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// log(1 + exp(x)) without overflow or cancellation.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

/// Running log Σ exp: `add` keeps the largest term apart, so nothing overflows.
struct LogSum {
  double largest = -kInfinity;
  double sum = 0.0;  // of exp(term − largest)
  void add(double term) {
    if (term == -kInfinity) return;
    if (term > largest) {
      sum = sum * std::exp(largest - term) + 1.0;
      largest = term;
    } else {
      sum += std::exp(term - largest);
    }
  }
  double value() const { return largest + std::log(sum); }
};

double log_sum_exp(std::span<const float> logits) {
  LogSum sum;
  for (const float logit : logits) sum.add(logit);
  return sum.value();
}

/// Uniform in [0, 1) with 53 bits: 24 would never reach classes rarer than 2^-24.
double next_uniform53(Philox& rng) {
  const uint64_t high = rng.next_u32() >> 5;
  const uint64_t low = rng.next_u32() >> 6;
  return static_cast<double>((high << 26) | low) * 0x1p-53;
}

double component_log_mass(double mean, double log_scale, int64_t target, int64_t levels) {
  const double half = 1.0 / static_cast<double>(levels - 1);
  const double x = 2.0 * static_cast<double>(target) * half - 1.0;
  const double inverse = std::exp(-std::max(log_scale, kMinLogScale));
  const double upper = (x + half - mean) * inverse;
  const double lower = (x - half - mean) * inverse;
  if (target == 0) return -softplus(-upper);
  if (target == levels - 1) return -softplus(lower);
  return -softplus(-upper) - softplus(lower) + std::log(-std::expm1(-2.0 * half * inverse));
}

Error not_finite(const char* what, size_t index) {
  return {ErrorCode::kCorrupt,
          std::string("the head output has ") + what + " at index " + std::to_string(index) +
              "; finite values are needed to draw a token",
          "sampler"};
}

}  // namespace

Status validate(const SamplerOptions& options) {
  if (!(options.temperature > 0.0f && options.temperature <= 1e6f)) {
    return invalid_argument("temperature is " + std::to_string(options.temperature) +
                            ", must be above 0 and at most 1e6 (greedy sampling needs none)");
  }
  if (options.top_k < 0) {
    return invalid_argument("top_k is " + std::to_string(options.top_k) +
                            ", must be 0 (off) or more");
  }
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) {
    return invalid_argument("top_p is " + std::to_string(options.top_p) +
                            ", must be above 0 and at most 1");
  }
  return {};
}

Sampler::Sampler(const model::HeadConfig& head, const SamplerOptions& options)
    : head_(head), options_(options) {
  const bool mixture = head.kind == model::HeadKind::kDiscretisedLogisticMixture;
  const auto choices = static_cast<size_t>(mixture ? head.components : head.classes);
  weights_.resize(choices);
  order_.resize(choices);
}

Result<int64_t> Sampler::draw_class(std::span<const float> logits, Philox& rng) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return not_finite("NaN", i);
    if (logits[i] == std::numeric_limits<float>::infinity()) return not_finite("infinity", i);
    if (logits[i] > logits[best]) best = i;
  }
  if (!std::isfinite(logits[best])) {
    return Error{ErrorCode::kCorrupt, "no class has a finite logit, at least one must", "sampler"};
  }
  if (options_.greedy) return static_cast<int64_t>(best);

  const double largest = logits[best];
  const double temperature = options_.temperature;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((static_cast<double>(logits[i]) - largest) / temperature);
  }
  size_t kept = logits.size();
  const bool cut_k = options_.top_k > 0 && options_.top_k < static_cast<int64_t>(kept);
  const bool cut_p = options_.top_p < 1.0f;
  std::iota(order_.begin(), order_.end(), 0);
  if (cut_k || cut_p) {
    // By logit, not by weight: at a low temperature many weights round to 0 and would tie.
    const auto likelier = [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    };
    if (cut_k) kept = static_cast<size_t>(options_.top_k);
    std::partial_sort(order_.begin(), order_.begin() + static_cast<int64_t>(kept), order_.end(),
                      likelier);
  }
  double total = 0.0;
  for (size_t i = 0; i < kept; ++i) total += weights_[order_[i]];
  if (cut_p) {
    const double wanted = static_cast<double>(options_.top_p) * total;
    total = 0.0;
    size_t i = 0;
    while (i < kept && total < wanted) total += weights_[order_[i++]];
    kept = i;
  }
  double rest = next_uniform53(rng) * total;
  int32_t chosen = static_cast<int32_t>(best);
  for (size_t i = 0; i < kept; ++i) {
    const double weight = weights_[order_[i]];
    if (weight == 0.0) continue;
    chosen = order_[i];  // stays at the last possible class if rounding leaves a rest
    if (rest < weight) break;
    rest -= weight;
  }
  return int64_t{chosen};
}

Result<int32_t> Sampler::draw(std::span<const float> output, Philox& rng) {
  TARN_CHECK(static_cast<int64_t>(output.size()) == head_.output_dim());
  if (head_.kind == model::HeadKind::kCategorical) {
    TARN_ASSIGN(const int64_t drawn, draw_class(output, rng));
    return static_cast<int32_t>(drawn);
  }
  const auto components = static_cast<size_t>(head_.components);
  TARN_ASSIGN(const int64_t component, draw_class(output.first(components), rng));
  const auto index = static_cast<size_t>(component);
  double x = output[components + index];
  const double log_scale = output[2 * components + index];
  if (!std::isfinite(x)) return not_finite("a mean that is not finite", components + index);
  if (!std::isfinite(log_scale)) {
    return not_finite("a log scale that is not finite", 2 * components + index);
  }
  if (!options_.greedy) {
    const double uniform = rng.next_open_uniform();
    const double logit = std::log(uniform) - std::log1p(-uniform);
    x += options_.temperature * std::exp(std::max(log_scale, kMinLogScale)) * logit;
  }
  x = std::clamp(x, -1.0, 1.0);
  const double steps = static_cast<double>(head_.classes - 1);
  return static_cast<int32_t>(std::lround((x + 1.0) / 2.0 * steps));
}

double categorical_log_prob(std::span<const float> logits, int64_t target) {
  return static_cast<double>(logits[static_cast<size_t>(target)]) - log_sum_exp(logits);
}

double mixture_log_prob(std::span<const float> params, int64_t target, int64_t levels) {
  const size_t components = params.size() / 3;
  LogSum weights;
  LogSum joint;
  for (size_t c = 0; c < components; ++c) {
    const double weight = params[c];
    weights.add(weight);
    joint.add(weight + component_log_mass(params[components + c], params[2 * components + c],
                                          target, levels));
  }
  return joint.value() - weights.value();
}

double head_log_prob(const model::HeadConfig& head, std::span<const float> output, int64_t target) {
  return head.kind == model::HeadKind::kCategorical
             ? categorical_log_prob(output, target)
             : mixture_log_prob(output, target, head.classes);
}

DrawnLogProbs drawn_log_probs(const model::HeadConfig& head, std::span<const float> output,
                              int32_t drawn, int64_t most) {
  const bool categorical = head.kind == model::HeadKind::kCategorical;
  const double log_sum = categorical ? log_sum_exp(output) : 0.0;
  const auto log_prob = [&](int32_t token) {
    return categorical ? static_cast<double>(output[static_cast<size_t>(token)]) - log_sum
                       : mixture_log_prob(output, token, head.classes);
  };
  DrawnLogProbs result{{drawn, log_prob(drawn)}, {}};
  if (most == 0) return result;
  std::vector<TokenLogProb>& likeliest = result.likeliest;
  const auto size = static_cast<size_t>(std::min(most, head.classes));
  likeliest.reserve(size + 1);
  for (int32_t token = 0; token < head.classes; ++token) {
    const TokenLogProb next{token, log_prob(token)};
    if (!std::isfinite(next.log_prob)) continue;
    // Behind its equals, which have lower numbers.
    const auto place = std::upper_bound(
        likeliest.begin(), likeliest.end(), next,
        [](const TokenLogProb& a, const TokenLogProb& b) { return a.log_prob > b.log_prob; });
    if (place == likeliest.end() && likeliest.size() == size) continue;
    likeliest.insert(place, next);
    if (likeliest.size() > size) likeliest.pop_back();
  }
  return result;
}

}  // namespace tarn::runtime
