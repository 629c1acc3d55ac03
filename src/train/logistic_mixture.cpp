#include "train/logistic_mixture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace tarn::train {
namespace {

constexpr int64_t kMaxComponents = 64;
constexpr double kMinLogScale = -7.0;

/// softplus(x) = log(1 + e^x) and its derivative, from one exponential.
struct Softplus {
  explicit Softplus(double x) {
    const double small = std::exp(-std::abs(x));
    value = std::max(x, 0.0) + std::log1p(small);
    slope = (x >= 0.0 ? 1.0 : small) / (1.0 + small);
  }
  double value;
  double slope;
};

struct Component {
  double log_probability = 0.0;
  double d_mean = 0.0;
  double d_log_scale = 0.0;
};

/// log P(level | one logistic) with its derivatives.
Component component(double mean, double log_scale, int64_t level, int64_t levels) {
  const double half = 1.0 / static_cast<double>(levels - 1);
  const double x = 2.0 * half * static_cast<double>(level) - 1.0;
  const bool is_clamped = log_scale < kMinLogScale;
  const double inverse = std::exp(-std::max(log_scale, kMinLogScale));
  const double upper = (x + half - mean) * inverse;
  const double lower = (x - half - mean) * inverse;
  Component result;
  if (level < levels - 1) {  // there is mass above: factor σ(upper)
    const Softplus above(-upper);
    result.log_probability -= above.value;
    result.d_mean -= above.slope * inverse;
    result.d_log_scale -= above.slope * upper;
  }
  if (level > 0) {  // there is mass below: factor σ(−lower)
    const Softplus below(lower);
    result.log_probability -= below.value;
    result.d_mean += below.slope * inverse;
    result.d_log_scale += below.slope * lower;
  }
  if (level > 0 && level < levels - 1) {  // factor 1 − e^(lower − upper)
    const double width = 2.0 * half * inverse;
    const double gap = -std::expm1(-width);
    result.log_probability += std::log(gap);
    result.d_log_scale -= width * (1.0 - gap) / gap;
  }
  if (is_clamped) result.d_log_scale = 0.0;
  return result;
}

}  // namespace

double logistic_mixture_nats(const float* params, int64_t components, int64_t level, int64_t levels,
                             double gradient_scale, float* gradient) {
  TARN_DCHECK(components >= 1 && components <= kMaxComponents);
  std::array<Component, kMaxComponents> parts;
  std::array<double, kMaxComponents> joint;  // logit + log P
  double max_logit = params[0];
  double max_joint = -HUGE_VAL;
  for (int64_t i = 0; i < components; ++i) {
    const auto at = static_cast<size_t>(i);
    parts[at] = component(params[components + i], params[2 * components + i], level, levels);
    joint[at] = params[i] + parts[at].log_probability;
    max_logit = std::max(max_logit, static_cast<double>(params[i]));
    max_joint = std::max(max_joint, joint[at]);
  }
  double sum_logits = 0.0;
  double sum_joint = 0.0;
  std::array<double, kMaxComponents> prior;
  for (int64_t i = 0; i < components; ++i) {
    const auto at = static_cast<size_t>(i);
    prior[at] = std::exp(params[i] - max_logit);
    joint[at] = std::exp(joint[at] - max_joint);
    sum_logits += prior[at];
    sum_joint += joint[at];
  }
  if (gradient != nullptr) {
    for (int64_t i = 0; i < components; ++i) {
      const auto at = static_cast<size_t>(i);
      const double posterior = joint[at] / sum_joint;
      gradient[i] = static_cast<float>(gradient_scale * (prior[at] / sum_logits - posterior));
      gradient[components + i] = static_cast<float>(-gradient_scale * posterior * parts[at].d_mean);
      gradient[2 * components + i] =
          static_cast<float>(-gradient_scale * posterior * parts[at].d_log_scale);
    }
  }
  return max_logit + std::log(sum_logits) - max_joint - std::log(sum_joint);
}

}  // namespace tarn::train
