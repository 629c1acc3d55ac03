#include "kernels/gates.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tarn::kernels::reference {
namespace {

double sigmoid(double x) {
  const double e = std::exp(-std::abs(x));
  return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

/// Φ(x).
double normal_below(double x) { return 0.5 * std::erfc(-0.5 * std::numbers::sqrt2 * x); }

}  // namespace

double gate_function(GateFunction function, double x) {
  switch (function) {
    case GateFunction::kIdentity: return x;
    case GateFunction::kSigmoid: return sigmoid(x);
    case GateFunction::kSilu: return x * sigmoid(x);
    case GateFunction::kTanh: return std::tanh(x);
    case GateFunction::kGelu: return x * normal_below(x);
    case GateFunction::kLogSigmoid: return -softplus(-x);
    case GateFunction::kSquaredRelu: return x > 0.0 ? x * x : 0.0;
    case GateFunction::kSoftplus: return softplus(x);
  }
  return x;
}

double gate_slope(GateFunction function, double x) {
  const double s = sigmoid(x);
  const double t = std::tanh(x);
  switch (function) {
    case GateFunction::kIdentity: return 1.0;
    case GateFunction::kSigmoid: return s * sigmoid(-x);
    case GateFunction::kSilu: return s * (1.0 + x * sigmoid(-x));
    case GateFunction::kTanh: return 1.0 - t * t;
    case GateFunction::kGelu: {
      constexpr double kDensity = 0.5 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
      return normal_below(x) + x * kDensity * std::exp(-0.5 * x * x);
    }
    case GateFunction::kLogSigmoid: return sigmoid(-x);
    case GateFunction::kSquaredRelu: return x > 0.0 ? 2.0 * x : 0.0;
    case GateFunction::kSoftplus: return s;
  }
  return 1.0;
}

}  // namespace tarn::kernels::reference
