#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serve/http/message.h"

namespace tarn::serve::http {

/// Header names and tokens compare so: ASCII letters without case.
bool equal_names(std::string_view a, std::string_view b);

/// What a request says about the form of its answer.
struct AnswerForm {
  bool http11 = true;
  bool keep_alive = true;
  bool head = false;  ///< no body, whatever the header says
  std::string id;
  Headers headers = {};  ///< besides those of the reply
};

/// Status line and header up to the empty line. `length` is that of the body; negative: the body is
/// chunked, or for HTTP/1.0 ends with the connection.
std::string format_head(const AnswerForm& form, int status, std::string_view content_type,
                        const Headers& headers, int64_t length);

/// "transfer-encoding: chunked" would be wrong for these, as is any body.
bool has_no_body(int status);

/// Appends `bytes` as one chunk; nothing for no bytes, which would end the body.
void append_chunk(std::string_view bytes, std::string* out);

/// `wanted` when it has 1 to 64 of [A-Za-z0-9._-], else 16 random hexadecimal digits.
std::string request_id(const std::string* wanted);

}  // namespace tarn::serve::http
