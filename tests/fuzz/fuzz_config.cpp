#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/config.h"
#include "model/parameters.h"

/// Any bytes as a config.json: an error, or a config that writes itself back.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = tarn::parse_json(text, "input", {.max_bytes = 1 << 20});
  if (!json.ok()) return 0;
  const auto config = tarn::model::parse_model_config(*json, "input");
  if (!config.ok()) return 0;
  TARN_CHECK(!tarn::model::parameter_table(*config).empty());
  const tarn::Json written = tarn::model::to_json(*config);
  const auto again = tarn::model::parse_model_config(written, "written");
  TARN_CHECK(again.ok() && tarn::model::to_json(*again) == written);
  return 0;
}
