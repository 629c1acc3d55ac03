#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"

namespace tarn {

/// Applies "a.b.2.c=value": keys and indices separated by points; "a.b[2].c", as messages write it,
/// is the same. The value is JSON, or a string
/// when it does not parse as such. The path must exist, except for its last key, and the new value
/// must have the type of the old one (an integer may replace a number).
Status apply_override(Json& json, const std::string& assignment);

}  // namespace tarn
