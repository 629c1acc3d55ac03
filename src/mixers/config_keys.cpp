#include "mixers/config_keys.h"

#include <algorithm>
#include <string>

namespace tarn::mixers {
namespace {

/// Adds what one reading asked for to what earlier ones did.
void merge(const std::vector<JsonKey>& keys, bool first, std::vector<ConfigKey>& all) {
  for (ConfigKey& known : all) {
    const auto is_it = [&](const JsonKey& key) { return key.name == known.key.name; };
    const auto found = std::find_if(keys.begin(), keys.end(), is_it);
    if (found == keys.end() || !(*found == known.key)) known.depends = true;
    if (found == keys.end()) continue;
    known.key.required |= found->required;
    if (!(found->min == known.key.min)) known.key.min = nullptr;
    if (!(found->max == known.key.max)) known.key.max = nullptr;
    if (!(found->fallback == known.key.fallback)) known.key.fallback = nullptr;
  }
  for (const JsonKey& key : keys) {
    const auto is_it = [&](const ConfigKey& known) { return known.key.name == key.name; };
    if (std::find_if(all.begin(), all.end(), is_it) == all.end()) all.push_back({key, !first});
  }
}

/// The config with all integers twice as large: what depends on one of them changes.
Json doubled(Json config) {
  for (Json::Member& member : *config.as_object()) {
    if (const int64_t* value = member.second.as_int()) member.second = 2 * *value;
  }
  return config;
}

}  // namespace

std::vector<ConfigKey> config_keys(const MixerDef& mixer) {
  std::vector<ConfigKey> all;
  bool first = true;
  for (const std::string& text : mixer.example_configs()) {
    const Result<Json> json = parse_json(text, mixer.name);
    if (!json.ok()) continue;
    for (const Json& variant : {*json, doubled(*json)}) {
      for (const int64_t model_dim : {64, 640}) {
        JsonReader reader(variant, mixer.name);
        // Whether the config is right does not matter to what is asked for.
        static_cast<void>(mixer.read_config(reader, model_dim));
        merge(reader.keys(), first, all);
        first = false;
      }
    }
  }
  return all;
}

}  // namespace tarn::mixers
