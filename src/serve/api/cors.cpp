#include "serve/api/cors.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

namespace tarn::serve::api {
namespace {

/// Where ":port" begins; the end if there is no port.
size_t port_begin(std::string_view place) {
  const size_t colon = place.rfind(':');
  const size_t bracket = place.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  return has_port ? colon : place.size();
}

/// ":1" to ":65535", or nothing.
bool is_port(std::string_view text) {
  if (text.empty()) return true;
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data() + 1, text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0 && text[1] != '0';
}

/// Without the port, in small letters.
std::string host_name(std::string_view place) {
  std::string name(place.substr(0, port_begin(place)));
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

}  // namespace

bool is_origin(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == std::string_view::npos || colon == 0) return false;
  const auto is_scheme = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  };
  const auto is_name = [&](char c) { return is_scheme(c) || c == '_'; };
  const auto is_address = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == ':' || c == '.';
  };
  const auto all = [](std::string_view part, const auto& fits) {
    return !part.empty() && std::all_of(part.begin(), part.end(), fits);
  };
  const std::string_view place = text.substr(colon + 3);
  const std::string_view host = place.substr(0, port_begin(place));
  const bool in_brackets = host.starts_with('[') && host.ends_with(']');
  return all(text.substr(0, colon), is_scheme) && is_port(place.substr(host.size())) &&
         (in_brackets ? all(host.substr(1, host.size() - 2), is_address) : all(host, is_name));
}

bool is_foreign(const http::Request& request, const std::string& origin) {
  const std::string* asking = request.header("Origin");
  if (asking == nullptr || (!origin.empty() && *asking == origin)) return false;
  const std::string* host = request.header("Host");
  const size_t colon = asking->find("://");
  if (host == nullptr || colon == std::string::npos) return true;
  return host_name(std::string_view(*asking).substr(colon + 3)) != host_name(*host);
}

bool answer_preflight(const http::Request& request, const std::string& origin,
                      http::Exchange& exchange) {
  const std::string* asking = request.header("Origin");
  const std::string* method = request.header("Access-Control-Request-Method");
  if (request.method != "OPTIONS" || method == nullptr || asking == nullptr) return false;
  http::Reply reply;
  reply.status = 204;
  reply.content_type.clear();
  if (*asking == origin) {
    reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE");
    reply.headers.emplace_back("Access-Control-Max-Age", "600");
    const std::string* headers = request.header("Access-Control-Request-Headers");
    if (headers != nullptr) reply.headers.emplace_back("Access-Control-Allow-Headers", *headers);
  }
  exchange.send(std::move(reply));
  return true;
}

http::Headers cors_headers(const std::string& origin) {
  if (origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After, X-Should-Retry"},
          {"Vary", "Origin"}};
}

}  // namespace tarn::serve::api
