#pragma once

#include <string>
#include <string_view>

#include "serve/http/message.h"

namespace tarn::serve::api {

// One other origin whose pages may call (the fetch standard's CORS). Everything else gets no such header,
// so that browsers keep the answers from their pages.

/// Whether browsers can send it as an Origin header: scheme://host or scheme://host:port, nothing behind.
bool is_origin(std::string_view text);

/// Whether a request comes from a page of another host than the one it was sent to (whatever the port: a
/// proxy may have another), and not of `origin`. Browsers say where a page is from with everything but
/// plain GETs, and send simple POSTs from anywhere.
bool is_foreign(const http::Request& request, const std::string& origin);

/// Answers an OPTIONS request that asks whether `origin` may call; false: it is no such request.
bool answer_preflight(const http::Request& request, const std::string& origin,
                      http::Exchange& exchange);
/// What lets pages of `origin` read an answer, to be sent with all of them (ServerOptions::headers); of no
/// origin nothing.
http::Headers cors_headers(const std::string& origin);

}  // namespace tarn::serve::api
