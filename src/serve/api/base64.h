#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tarn::serve::api {

/// RFC 4648, section 4, with padding.
std::string encode_base64(std::string_view bytes);
/// Nothing unless `text` is what encode_base64 gives for some bytes.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace tarn::serve::api
