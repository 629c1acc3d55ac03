#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tarn::kernels {

enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

/// Config names: "none", "relu", "gelu" (erf form), "gelu_tanh", "silu".
std::string_view activation_name(Activation activation);
std::optional<Activation> activation_from_name(std::string_view name);

/// x[i] = f(x[i]) for i < size, in place. f32; relative error below 4 ulp of the double value for
/// relu, and below 1e-6·max(1, |x|) absolute for the others.
void apply_activation(Activation activation, int64_t size, float* x) noexcept;

namespace reference {
double activation(Activation activation, double x);
}

}  // namespace tarn::kernels
