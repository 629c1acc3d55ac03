#include <array>

#include "mixers/common/torch_mixer.h"

namespace tarn::mixers {

// Weak: a mechanism without autograd.cpp links and is refused by name when a config asks for it.
#define MIXER(name)                                           \
  namespace name {                                            \
  extern const TorchMixerDef kTorchDef __attribute__((weak)); \
  }
#include "mixers/mixers.def"
#undef MIXER

const TorchMixerDef* find_torch_mixer(const MixerDef& def) {
#define MIXER(name) &name::kTorchDef,
  const std::array mixers{
#include "mixers/mixers.def"
  };
#undef MIXER
  for (const TorchMixerDef* mixer : mixers) {
    if (mixer != nullptr && mixer->def == &def) return mixer;
  }
  return nullptr;
}

}  // namespace tarn::mixers
