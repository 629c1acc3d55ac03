#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>

namespace tarn {

/// The one place where sizes that come from outside are multiplied and added.
/// Each returns nothing when the exact result does not fit the type.
template <std::integral T>
std::optional<T> checked_add(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
std::optional<T> checked_mul(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// Product of all extents; 1 for an empty shape; nothing if one is negative or on overflow.
template <std::integral T>
std::optional<T> checked_product(std::span<const T> extents) {
  T product = 1;
  for (T extent : extents) {
    if (extent < 0) return std::nullopt;
    if (__builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  return product;
}

}  // namespace tarn
