#include "train/optimiser.h"

#include <algorithm>
#include <cmath>

#include "train/muon.h"

namespace tarn::train {
namespace {

/// Constants of one update: w ← keep·w − step·m / (√v·root_scale + eps), or − step·m without the
/// variance term when `adaptive` is false.
struct Constants {
  float beta1, beta2, gradient_scale, step, root_scale, eps;
  bool adaptive = true;
};

/// Step size and scales at update t (from 1).
Constants constants_at(const OptimiserConfig& config, double learning_rate, double gradient_scale,
                       int64_t t) {
  const auto steps = static_cast<double>(t);
  const double bias1 = 1.0 - std::pow(config.beta1, steps);
  const double beta2_power = std::pow(config.beta2, steps);
  const double bias2 = 1.0 - beta2_power;
  double step = learning_rate / bias1;
  double root_scale = 1.0 / std::sqrt(bias2);
  bool adaptive = true;
  if (config.kind == OptimiserKind::kRAdam) {
    const double rho_limit = 2.0 / (1.0 - config.beta2) - 1.0;
    const double rho = rho_limit - 2.0 * steps * beta2_power / bias2;
    adaptive = rho > 5.0;
    if (adaptive) {
      const double rectifier = std::sqrt((rho - 4.0) * (rho - 2.0) * rho_limit /
                                         ((rho_limit - 4.0) * (rho_limit - 2.0) * rho));
      step *= rectifier * std::sqrt(bias2);
      root_scale = 1.0;
    }
  }
  return {static_cast<float>(config.beta1),
          static_cast<float>(config.beta2),
          static_cast<float>(gradient_scale),
          static_cast<float>(step),
          static_cast<float>(root_scale),
          static_cast<float>(config.eps),
          adaptive};
}

void update_range(const Constants& c, float keep, int64_t size, const float* gradient, float* m,
                  float* v, float* w) {
  for (int64_t i = 0; i < size; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    m[i] = c.beta1 * m[i] + (1.0f - c.beta1) * g;
    v[i] = c.beta2 * v[i] + (1.0f - c.beta2) * g * g;
    const float change = c.adaptive ? m[i] / (std::sqrt(v[i]) * c.root_scale + c.eps) : m[i];
    w[i] = keep * w[i] - c.step * change;
  }
}

}  // namespace

Optimiser::Optimiser(const OptimiserConfig& config, const ParameterBuffers& parameters,
                     DType precision)
    : config_(config),
      precision_(precision),
      first_moment_(Buffer<float>::filled(parameters.values.size(), 0.0f)),
      second_moment_(Buffer<float>::filled(parameters.values.size(), 0.0f)) {}

void Optimiser::update(double factor, double gradient_scale, ParameterBuffers& parameters,
                       ThreadPool* pool) {
  ++updates_;
  const bool is_muon = config_.kind == OptimiserKind::kMuon;
  if (is_muon) {
    muon_update(config_, factor, gradient_scale, precision_, parameters, first_moment_, pool);
  }
  const double learning_rate = config_.learning_rate * factor;
  const Constants constants = constants_at(config_, learning_rate, gradient_scale, updates_);
  const auto decayed = static_cast<float>(1.0 - learning_rate * config_.weight_decay);
  parallel_for(pool, parameters.values.size(), [&](int64_t begin, int64_t end, int) {
    for (const ParameterBuffers::Entry& entry : parameters.entries) {
      const int64_t first = std::max(begin, entry.offset);
      const int64_t last = std::min(end, entry.offset + entry.size);
      if (first >= last || (is_muon && is_muon_matrix(entry.spec))) continue;
      update_range(constants, entry.spec.weight_decay ? decayed : 1.0f, last - first,
                   parameters.gradients.data() + first, first_moment_.data() + first,
                   second_moment_.data() + first, parameters.values.data() + first);
    }
  });
}

}  // namespace tarn::train
