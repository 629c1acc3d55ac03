// Text on its way in and out: characters put together from bytes, stop strings, the chat template.
// The first byte of an input says how the rest is cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "runtime/utf8.h"
#include "serve/api/chat_template.h"
#include "serve/stop_strings.h"

namespace {

using tarn::runtime::Utf8Stream;
using tarn::serve::StopStrings;

/// A string literal is UTF-8 or no JSON.
bool is_utf8(std::string_view text) {
  std::string plain(text);
  for (char& c : plain) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || c == '"' || c == '\\') c = ' ';
  }
  return tarn::parse_json("\"" + plain + "\"", "text").ok();
}

/// What comes out is UTF-8, is what went in where that was, and does not depend on a pause.
void check_characters(std::string_view bytes, size_t pause) {
  Utf8Stream stream, resumed;
  std::string out, other;
  for (size_t i = 0; i < bytes.size(); ++i) {
    stream.push(static_cast<uint8_t>(bytes[i]), &out);
    if (i % pause == 0) {
      Utf8Stream next;
      TARN_CHECK(next.set_pending(resumed.pending()));
      resumed = next;
    }
    resumed.push(static_cast<uint8_t>(bytes[i]), &other);
  }
  TARN_CHECK(stream.pending() == resumed.pending());
  stream.flush(&out);
  resumed.flush(&other);
  TARN_CHECK(out == other && is_utf8(out));
  if (is_utf8(bytes)) TARN_CHECK(out == bytes);
}

std::vector<std::string> split(std::string_view bytes) {
  std::vector<std::string> parts(1);
  for (const char c : bytes) {
    if (c == '\0') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

struct Stopped {
  std::string text;
  int found = -1;
};

Stopped stop(const std::vector<std::string>& strings, std::string_view text, size_t piece) {
  StopStrings stops(strings);
  Stopped result;
  bool ended = false;
  for (size_t i = 0; i < text.size() && !ended; i += piece) {
    ended = stops.push(text.substr(i, piece), &result.text);
  }
  if (!ended) stops.flush(&result.text);
  result.found = stops.found();
  return result;
}

/// The last part is the text, those before it are the stop strings.
void check_stops(std::vector<std::string> parts, size_t piece) {
  const std::string text = parts.back();
  parts.pop_back();
  if (!tarn::serve::validate_stop_strings(parts).ok()) return;
  const Stopped one = stop(parts, text, 1);
  const Stopped cut = stop(parts, text, piece);
  TARN_CHECK(one.text == cut.text && one.found == cut.found);
  if (one.found < 0) {
    TARN_CHECK(one.text == text);
    for (const std::string& string : parts) TARN_CHECK(text.find(string) == std::string::npos);
  } else {
    const std::string& string = parts[static_cast<size_t>(one.found)];
    TARN_CHECK(text.starts_with(one.text + string));
    for (const std::string& other : parts) {
      TARN_CHECK(one.text.find(other) == std::string::npos);
    }
  }
}

/// A blank line ends each message and is nowhere else.
void check_chat(const std::vector<std::string>& parts) {
  using tarn::serve::api::ChatMessage;
  std::vector<ChatMessage> messages;
  for (const std::string& part : parts) {
    const auto role = static_cast<ChatMessage::Role>(messages.size() % 3);
    messages.push_back({role, part});
  }
  const std::string text = tarn::serve::api::render_chat(messages, false);
  TARN_CHECK(text.ends_with("\n\nAssistant:"));
  size_t ends = 0;
  for (size_t at = text.find("\n\n"); at != std::string::npos; at = text.find("\n\n", at + 2)) {
    ++ends;
  }
  TARN_CHECK(ends == messages.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = std::max<size_t>(1, data[0] % 16);
  const auto parts = split(bytes);
  check_characters(bytes, piece);
  check_stops(parts, piece);
  check_chat(parts);
  return 0;
}
