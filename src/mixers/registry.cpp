#include <array>
#include <utility>

#include "mixers/mixer.h"

namespace tarn::mixers {

#define MIXER(name)           \
  namespace name {            \
  extern const MixerDef kDef; \
  }
#include "mixers/mixers.def"
#undef MIXER

namespace {

#define MIXER(name) &name::kDef,
constexpr std::array kMixers{
#include "mixers/mixers.def"
};
#undef MIXER

}  // namespace

std::span<const MixerDef* const> all_mixers() { return kMixers; }

Result<const MixerDef*> find_mixer(const std::string& name, const std::string& where) {
  std::string known;
  for (const MixerDef* mixer : kMixers) {
    if (name == mixer->name) return mixer;
    known += known.empty() ? mixer->name : std::string(", ") + mixer->name;
  }
  return invalid_argument("unknown mixer \"" + name + "\"; this build has: " + known, where);
}

Result<ConfiguredMixer> parse_mixer(const Json& json, int64_t model_dim, const std::string& where) {
  const Json* name = json.find("name");
  if (json.as_object() == nullptr || name == nullptr || name->as_string() == nullptr) {
    return invalid_argument("must be an object with a string \"name\"", where);
  }
  ConfiguredMixer mixer;
  TARN_ASSIGN(mixer.def, find_mixer(*name->as_string(), where + ".name"));
  Json::Object rest;
  for (const Json::Member& member : *json.as_object()) {
    if (member.first != "name") rest.push_back(member);
  }
  TARN_ASSIGN(mixer.config, mixer.def->parse_config(Json(std::move(rest)), model_dim, where));
  return mixer;
}

}  // namespace tarn::mixers
