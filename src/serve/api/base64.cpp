#include "serve/api/base64.h"

#include <algorithm>
#include <cstdint>

namespace tarn::serve::api {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < count ? static_cast<unsigned char>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t group = 0;
    size_t digits = 0;
    for (; digits < 4 && text[i + digits] != '='; ++digits) {
      const size_t value = kDigits.find(text[i + digits]);
      if (value == std::string_view::npos) return std::nullopt;
      group |= static_cast<uint32_t>(value) << (18 - 6 * digits);
    }
    for (size_t j = 0; j + 1 < digits; ++j) bytes += static_cast<char>(group >> (16 - 8 * j) & 255);
  }
  // Padding in the middle, and bits that no byte needs, have one spelling only: none.
  if (encode_base64(bytes) != text) return std::nullopt;
  return bytes;
}

}  // namespace tarn::serve::api
