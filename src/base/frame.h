#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/result.h"

namespace tarn {

/// Takes fields off the front of bytes; a read past the end gives zeros and is remembered.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const std::string_view piece = bytes(sizeof(T));
    if (piece.size() == sizeof(T)) std::memcpy(&value, piece.data(), sizeof(T));
    return value;
  }
  std::string_view bytes(uint64_t count);
  bool overrun() const { return overrun_; }
  bool at_end() const { return !overrun_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool overrun_ = false;
};

/// Appends the bytes of a number, in the machine's byte order.
template <class T>
void put(std::string* out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// 16 hexadecimal digits.
std::string hex(uint64_t value);

/// The outside that our binary formats share: a preamble of 48 bytes with magic, version, byte-order
/// mark, lengths and checksums, then a header and a payload (docs/formats/snapshot.md).
struct FrameKind {
  std::string_view magic;  ///< 8 bytes
  uint32_t version;
  std::string_view noun;  ///< what errors call it, e.g. "snapshot"
};
inline constexpr size_t kFramePreambleBytes = 48;

struct Frame {
  std::string_view header;
  std::string_view payload;
};

/// A preamble whose lengths and checksums are still zero: append header and payload to it.
std::string begin_frame(const FrameKind& kind);
/// Fills in lengths and checksums; the payload starts at `payload_start`.
void finish_frame(std::string* bytes, size_t payload_start);
/// Checks magic, byte order, version, lengths and checksums; the views point into `bytes`.
/// Errors: kCorrupt; kUnsupported, another version or byte order. Pure; allocates nothing.
Result<Frame> open_frame(std::string_view bytes, const FrameKind& kind, const std::string& where);

}  // namespace tarn
