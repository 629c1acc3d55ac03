#include "runtime/utf8.h"

#include <algorithm>

namespace tarn::runtime {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the character that starts with `lead`; 0 if none does.
size_t length_of(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// Whether `byte` may follow: the second byte of some leads has a narrower range, which keeps out
/// overlong forms, surrogates and values above U+10FFFF (Unicode 15, table 3-7).
bool continues(uint8_t lead, size_t index, uint8_t byte) {
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (index == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return byte >= low && byte <= high;
}

}  // namespace

void Utf8Stream::push(uint8_t byte, std::string* out) {
  if (size_ > 0) {
    const auto lead = static_cast<uint8_t>(pending_[0]);
    if (continues(lead, size_, byte)) {
      pending_[size_++] = static_cast<char>(byte);
      if (size_ == length_of(lead)) {
        out->append(pending_, size_);
        size_ = 0;
      }
      return;
    }
    flush(out);
  }
  switch (length_of(byte)) {
    case 0: out->append(kReplacement); break;
    case 1: out->push_back(static_cast<char>(byte)); break;
    default: pending_[0] = static_cast<char>(byte); size_ = 1;
  }
}

void Utf8Stream::flush(std::string* out) {
  if (size_ > 0) out->append(kReplacement);
  size_ = 0;
}

bool Utf8Stream::set_pending(std::string_view bytes) {
  if (bytes.size() >= sizeof(pending_)) return false;
  if (!bytes.empty()) {
    const auto lead = static_cast<uint8_t>(bytes[0]);
    if (length_of(lead) <= bytes.size()) return false;
    for (size_t i = 1; i < bytes.size(); ++i) {
      if (!continues(lead, i, static_cast<uint8_t>(bytes[i]))) return false;
    }
  }
  std::copy(bytes.begin(), bytes.end(), pending_);
  size_ = bytes.size();
  return true;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), begins_character);
}

}  // namespace tarn::runtime
