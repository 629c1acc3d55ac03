// Feeds bytes to the parser of saved sessions, as they are and with lengths and checksums put right,
// so that the rules behind them are reached too.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/frame.h"
#include "serve/service/saved_session.h"

namespace {

using namespace tarn;         // NOLINT: one program
using namespace tarn::serve;  // NOLINT: one program

/// What is accepted must come back the same.
void check(const std::string& bytes) {
  const auto session = parse_saved_session(bytes, "fuzz");
  if (session.ok() ? encode_saved_session(*session) != bytes : session.error().message.empty()) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  check(bytes);
  if (size < kFramePreambleBytes) return 0;
  uint64_t payload = 0;
  std::memcpy(&payload, bytes.data() + 24, sizeof payload);
  std::string frame = begin_frame({"TARNTURN", 1, "saved session"});
  frame += bytes.substr(kFramePreambleBytes);
  finish_frame(&frame,
               frame.size() - std::min<size_t>(payload, frame.size() - kFramePreambleBytes));
  check(frame);
  return 0;
}
