#include "kernels/diagonal_scan.h"

#include <complex>

namespace tarn::kernels {
namespace {

using Complex = std::complex<double>;

Complex pair_at(const float* x, int64_t i) {
  return {static_cast<double>(x[2 * i]), static_cast<double>(x[2 * i + 1])};
}

/// (e^z − 1)/z and its derivative; by their series where the quotients would cancel.
struct Phi {
  explicit Phi(Complex z) {
    constexpr double kSmall = 1e-3;
    if (std::abs(z) < kSmall) {
      value = 1.0 + z * (1.0 / 2 + z / 6.0);
      derivative = 1.0 / 2 + z * (1.0 / 3 + z / 8.0);
    } else {
      value = (std::exp(z) - 1.0) / z;
      derivative = (std::exp(z) - value) / z;
    }
  }
  Complex value, derivative;
};

}  // namespace

void zero_order_hold(int64_t num_channels, int64_t state_dim, const float* a, const float* dt,
                     float* transition, float* input) noexcept {
  for (int64_t e = 0; e < num_channels; ++e) {
    const double step = static_cast<double>(dt[e]);
    for (int64_t i = e * state_dim; i < (e + 1) * state_dim; ++i) {
      const Complex z = step * pair_at(a, i);
      const Complex decay = std::exp(z);
      const Complex write = step * Phi(z).value;
      transition[2 * i] = static_cast<float>(decay.real());
      transition[2 * i + 1] = static_cast<float>(decay.imag());
      input[2 * i] = static_cast<float>(write.real());
      input[2 * i + 1] = static_cast<float>(write.imag());
    }
  }
}

void zero_order_hold_gradient(int64_t num_channels, int64_t state_dim, const float* a,
                              const float* dt, const float* dtransition, const float* dinput,
                              float* da, float* ddt) noexcept {
  // Pairs (∂L/∂re, ∂L/∂im) go through a holomorphic f as multiplication by the conjugate of f′.
  for (int64_t e = 0; e < num_channels; ++e) {
    const double step = static_cast<double>(dt[e]);
    double dstep = 0;
    for (int64_t i = e * state_dim; i < (e + 1) * state_dim; ++i) {
      const Complex rate = pair_at(a, i);
      const Complex z = step * rate;
      const Complex decay = std::exp(z);
      const Complex ddecay = pair_at(dtransition, i);
      const Complex dwrite = pair_at(dinput, i);
      const Complex sum =
          std::conj(step * decay) * ddecay + std::conj(step * step * Phi(z).derivative) * dwrite;
      da[2 * i] += static_cast<float>(sum.real());
      da[2 * i + 1] += static_cast<float>(sum.imag());
      dstep += (std::conj(rate * decay) * ddecay + std::conj(decay) * dwrite).real();
    }
    ddt[e] += static_cast<float>(dstep);
  }
}

}  // namespace tarn::kernels
