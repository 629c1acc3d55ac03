// Feeds bytes to the parsers of records and session heads, as they are and with lengths and
// checksums put right, so that the rules behind them are reached too.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/frame.h"
#include "serve/record.h"

namespace {

using namespace tarn;         // NOLINT: one program
using namespace tarn::serve;  // NOLINT: one program

/// What is accepted must come back the same.
void check(const std::string& bytes) {
  const auto record = parse_record(bytes, "fuzz");
  if (record.ok()) {
    // The content of chunks is elsewhere, so only a payload in the record can be written again.
    if (record->chunks.empty() &&
        encode_record(record->record, record->payload, record->chunks) != bytes) {
      std::abort();
    }
  } else if (record.error().message.empty()) {
    std::abort();
  }
  const auto head = parse_head(bytes, "fuzz");
  if (head.ok() && encode_head(*head) != bytes) std::abort();
}

/// The same bytes as a frame of this magic whose last `payload` bytes are its payload.
std::string repaired(std::string bytes, std::string_view magic, size_t payload) {
  if (bytes.size() < kFramePreambleBytes) return bytes;
  std::string frame = begin_frame({magic, 1, "record"});
  frame += bytes.substr(kFramePreambleBytes);
  finish_frame(&frame, frame.size() - std::min(payload, frame.size() - kFramePreambleBytes));
  return frame;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  uint64_t payload = 0;
  if (size >= kFramePreambleBytes) std::memcpy(&payload, bytes.data() + 24, sizeof payload);
  check(repaired(bytes, "TARNRECD", payload));
  check(repaired(bytes, "TARNSESS", 0));
  return 0;
}
