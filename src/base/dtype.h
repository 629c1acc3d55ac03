#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tarn {

/// Element types of stored tensors. Arithmetic is in f32 (or f64 in the references).
enum class DType : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2, kF64 = 3, kI64 = 4, kI32 = 5, kU8 = 6 };

/// Size of one element in bytes.
constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 4;
    case DType::kBF16: return 2;
    case DType::kF16: return 2;
    case DType::kF64: return 8;
    case DType::kI64: return 8;
    case DType::kI32: return 4;
    case DType::kU8: return 1;
  }
  return 0;
}

/// Name as in configs and JSON output: "f32", "bf16", …
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

/// bf16 to f32: exact. f32 to bf16: round to nearest even; NaN stays NaN.
inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// IEEE half to f32: exact, subnormals included.
float f16_to_f32(uint16_t bits);

}  // namespace tarn
