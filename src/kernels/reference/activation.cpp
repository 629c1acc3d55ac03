#include "kernels/activation.h"

#include <cmath>

namespace tarn::kernels::reference {

double activation(Activation activation, double x) {
  constexpr double kSqrtHalf = 0.70710678118654752440;
  constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kRelu: return x > 0.0 ? x : 0.0;
    case Activation::kGelu: return 0.5 * x * std::erfc(-x * kSqrtHalf);
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(kSqrtTwoOverPi * (x + 0.044715 * x * x * x)));
    case Activation::kSilu: return x / (1.0 + std::exp(-x));
  }
  return x;
}

}  // namespace tarn::kernels::reference
