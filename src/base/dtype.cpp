#include "base/dtype.h"

#include <array>
#include <cmath>
#include <utility>

namespace tarn {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 7> kNames{{{DType::kF32, "f32"},
                                                                    {DType::kBF16, "bf16"},
                                                                    {DType::kF16, "f16"},
                                                                    {DType::kF64, "f64"},
                                                                    {DType::kI64, "i64"},
                                                                    {DType::kI32, "i32"},
                                                                    {DType::kU8, "u8"}}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "unknown";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

}  // namespace tarn
