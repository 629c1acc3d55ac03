#include <array>

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

}  // namespace tarn::mixers
