#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"

/// Any bytes: an error or a document that survives writing and reading.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = tarn::parse_json(text, "input");
  if (!json.ok()) {
    TARN_CHECK(!json.error().message.empty());
    return 0;
  }
  for (const int indent : {0, 2}) {
    const auto again = tarn::parse_json(json->dump(indent), "dump", {.max_bytes = 1 << 30});
    TARN_CHECK(again.ok() && *again == *json);
  }
  return 0;
}
