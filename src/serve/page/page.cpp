#include "serve/page/page.h"

#include <algorithm>
#include <string>

namespace tarn::serve::page {
namespace {

constexpr const char* kPolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'";

/// Whether an If-None-Match header names `etag`, also as a weak one or as "*".
bool names(std::string_view list, std::string_view etag) {
  while (!list.empty()) {
    std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
    const size_t begin = entry.find_first_not_of(" \t");
    if (begin == std::string_view::npos) continue;
    entry = entry.substr(begin, entry.find_last_not_of(" \t") - begin + 1);
    if (entry.substr(0, 2) == "W/") entry.remove_prefix(2);
    if (entry == etag || entry == "*") return true;
  }
  return false;
}

}  // namespace

const File* find(std::string_view path) {
  const std::span<const File> all = files();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const File& file) { return file.path == path; });
  return found == all.end() ? nullptr : &*found;
}

http::Reply answer(const File& file, const http::Request& request) {
  if (request.method != "GET") {
    http::Reply reply =
        http::error_reply(405, "method_not_allowed", request.path + " takes GET only");
    reply.headers.emplace_back("Allow", "GET");
    return reply;
  }
  http::Reply reply;
  // Asked for again each time, and answered with 304: a new program's page is never mixed with an
  // old one's scripts.
  reply.headers = {{"ETag", std::string(file.etag)},
                   {"Cache-Control", "no-cache"},
                   {"Content-Security-Policy", kPolicy},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"}};
  const std::string* known = request.header("If-None-Match");
  if (known != nullptr && names(*known, file.etag)) {
    reply.status = 304;
    reply.content_type.clear();
    return reply;
  }
  reply.content_type = file.content_type;
  reply.body = file.body;
  return reply;
}

}  // namespace tarn::serve::page
