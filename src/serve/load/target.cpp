#include "serve/load/target.h"

#include <fmt/format.h>

#include <charconv>

namespace tarn::serve::load {
namespace {

Error bad_url(const std::string& url) {
  return invalid_argument("wanted http://host:port, got \"" + url + "\"", "URL");
}

bool is_plain(std::string_view text) {
  for (const char c : text) {
    if (c <= ' ' || c == 0x7f) return false;
  }
  return true;
}

}  // namespace

std::string Target::request(std::string_view method, std::string_view path, std::string_view body,
                            std::string_view key) const {
  const bool is_v6 = host.find(':') != std::string::npos;
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\n", method, prefix, path,
                                is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
  if (!key.empty()) out += fmt::format("Authorization: Bearer {}\r\n", key);
  if (!body.empty() || method != "GET") {
    out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  out += "\r\n";
  out += body;
  return out;
}

Result<Target> parse_target(const std::string& url) {
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    return Error{ErrorCode::kUnsupported,
                 "this client speaks no TLS; name the server behind the proxy", "URL"};
  }
  if (!rest.starts_with("http://") || !is_plain(rest)) return bad_url(url);
  rest.remove_prefix(7);
  Target target;
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) {
    std::string_view prefix = rest.substr(slash);
    while (prefix.ends_with('/')) prefix.remove_suffix(1);
    if (prefix.ends_with("/v1")) prefix.remove_suffix(3);
    target.prefix = prefix;
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == std::string_view::npos) return bad_url(url);
    target.host = rest.substr(1, end - 1);
    port = rest.substr(end + 1);
    if (!port.empty() && port.front() != ':') return bad_url(url);
    if (!port.empty()) port.remove_prefix(1);
  } else {
    const size_t colon = rest.find(':');
    target.host = rest.substr(0, colon);
    if (colon != std::string_view::npos) port = rest.substr(colon + 1);
  }
  if (!port.empty()) {
    const auto read = std::from_chars(port.data(), port.data() + port.size(), target.port);
    if (read.ec != std::errc() || read.ptr != port.data() + port.size()) return bad_url(url);
  }
  if (target.host.empty() || target.port < 1 || target.port > 65'535) return bad_url(url);
  return target;
}

}  // namespace tarn::serve::load
