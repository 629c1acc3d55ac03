#pragma once

#include <vector>

#include "base/json.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// A key of a mechanism's config object, as its parser asks for it.
struct ConfigKey {
  /// `required` when it is so in any config; limits and fallback are null where they depend.
  JsonKey key;
  /// Its limits, its default or whether it exists depend on other keys or on the model's width.
  bool depends = false;
};

/// All keys that the mechanism's parser asks for, in its order: what it asked for while it read the
/// example configs, as they are and with other sizes, for models of two widths. A test holds that these
/// reach all keys of each mechanism.
std::vector<ConfigKey> config_keys(const MixerDef& mixer);

}  // namespace tarn::mixers
