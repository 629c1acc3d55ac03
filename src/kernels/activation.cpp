#include "kernels/activation.h"

#include <array>
#include <utility>

namespace tarn::kernels {
namespace {

constexpr std::array<std::pair<Activation, std::string_view>, 5> kNames = {{
    {Activation::kNone, "none"},
    {Activation::kRelu, "relu"},
    {Activation::kGelu, "gelu"},
    {Activation::kGeluTanh, "gelu_tanh"},
    {Activation::kSilu, "silu"},
}};

}  // namespace

std::string_view activation_name(Activation activation) {
  for (const auto& [value, name] : kNames) {
    if (value == activation) return name;
  }
  return "unknown";
}

std::optional<Activation> activation_from_name(std::string_view name) {
  for (const auto& [value, candidate] : kNames) {
    if (candidate == name) return value;
  }
  return std::nullopt;
}

}  // namespace tarn::kernels
