#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tarn::runtime {

/// Turns a stream of bytes into valid UTF-8 as soon as each character is complete. Bytes that can
/// belong to no character come out as U+FFFD, one per maximal broken prefix (Unicode 15, §3.9).
class Utf8Stream {
 public:
  /// Appends to `out` what `byte` completes: nothing, a character, or replacements.
  void push(uint8_t byte, std::string* out);
  /// Ends the stream: an unfinished character becomes one U+FFFD.
  void flush(std::string* out);

  /// The 0 to 3 bytes of an unfinished character.
  std::string_view pending() const { return {pending_, size_}; }
  /// Resumes from pending(); false, and no change, if `bytes` is no such prefix.
  bool set_pending(std::string_view bytes);

 private:
  char pending_[4] = {};
  size_t size_ = 0;
};

/// Whether a byte of valid UTF-8 is the first of its character.
inline bool begins_character(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; }
/// Characters of valid UTF-8.
int64_t count_characters(std::string_view text);

}  // namespace tarn::runtime
