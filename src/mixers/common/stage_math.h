#pragma once

#include <cmath>
#include <cstdint>

#include "mixers/common/stages.h"

namespace tarn::mixers {

/// Scalar functions of the stages, in the precision of their argument; nothing overflows.

template <class T>
T sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

/// log(1 + e^x).
template <class T>
T softplus(T x) {
  return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
}

template <class T>
T gate_value(GateFunction function, T x) {
  switch (function) {
    case GateFunction::kIdentity: return x;
    case GateFunction::kSigmoid: return sigmoid(x);
    case GateFunction::kSilu: return x * sigmoid(x);
    case GateFunction::kTanh: return std::tanh(x);
    case GateFunction::kLogSigmoid: return -softplus(-x);
    case GateFunction::kSquaredRelu: return x > T(0) ? x * x : T(0);
  }
  return x;
}

template <class T>
T gate_slope(GateFunction function, T x) {
  switch (function) {
    case GateFunction::kIdentity: return T(1);
    case GateFunction::kSigmoid: {
      const T s = sigmoid(x);
      return s * (T(1) - s);
    }
    case GateFunction::kSilu: {
      const T s = sigmoid(x);
      return s * (T(1) + x * (T(1) - s));
    }
    case GateFunction::kTanh: {
      const T t = std::tanh(x);
      return T(1) - t * t;
    }
    case GateFunction::kLogSigmoid: return sigmoid(-x);
    case GateFunction::kSquaredRelu: return x > T(0) ? T(2) * x : T(0);
  }
  return T(1);
}

}  // namespace tarn::mixers
