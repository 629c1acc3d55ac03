#pragma once

#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "mixers/layer.h"

namespace tarn::conformance {

/// The "mixer" objects of a model's layers that end with this example config of `mixer`. Where it
/// receives rows, an example of the same mechanism that hands such rows on comes before it.
inline std::vector<Json> layer_stack(const mixers::MixerDef& mixer, const std::string& example,
                                     int64_t model_dim) {
  const auto named = [&](const std::string& text) {
    const auto json = parse_json(text, mixer.name);
    TARN_CHECK(json.ok());
    Json::Object members{{"name", mixer.name}};
    for (const auto& member : *json->as_object()) members.push_back(member);
    return Json(std::move(members));
  };
  const auto rows = [&](const std::string& text) {
    const auto json = parse_json(text, mixer.name);
    const auto config = mixer.parse_config(*json, model_dim, mixer.name);
    TARN_CHECK(config.ok());
    return mixers::layer_rows(mixer, **config);
  };
  const int64_t wanted = rows(example).received;
  if (wanted == 0) return {named(example)};
  for (const std::string& other : mixer.example_configs()) {
    const mixers::LayerRows offered = rows(other);
    if (offered.handed_on == wanted && offered.received == 0) {
      return {named(other), named(example)};
    }
  }
  TARN_CHECK(!"no example config hands on what another receives");
  return {};
}

}  // namespace tarn::conformance
