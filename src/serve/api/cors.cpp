#include "serve/api/cors.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace tarn::serve::api {
namespace {

void allow(const std::string& origin, http::Headers* headers) {
  headers->emplace_back("Access-Control-Allow-Origin", origin);
  headers->emplace_back("Access-Control-Expose-Headers",
                        "X-Request-Id, Retry-After, X-Should-Retry");
  headers->emplace_back("Vary", "Origin");
}

/// Without the port, in small letters.
std::string host_name(std::string_view place) {
  const size_t colon = place.rfind(':');
  const size_t bracket = place.rfind(']');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    place = place.substr(0, colon);
  }
  std::string name(place);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

class CorsExchange : public http::Exchange {
 public:
  CorsExchange(std::shared_ptr<http::Exchange> inner, std::string origin)
      : inner_(std::move(inner)), origin_(std::move(origin)) {}

  void send(http::Reply reply) override {
    allow(origin_, &reply.headers);
    inner_->send(std::move(reply));
  }
  bool start_stream(http::StreamHead head) override {
    allow(origin_, &head.headers);
    return inner_->start_stream(std::move(head));
  }
  bool write(std::string_view bytes) override { return inner_->write(bytes); }
  void finish() override { inner_->finish(); }
  void on_gone(std::function<void()> callback) override { inner_->on_gone(std::move(callback)); }
  bool gone() const override { return inner_->gone(); }

 private:
  const std::shared_ptr<http::Exchange> inner_;
  const std::string origin_;
};

}  // namespace

bool is_origin(std::string_view text) {
  const size_t colon = text.find("://");
  if (colon == std::string_view::npos || colon == 0) return false;
  const auto is_scheme = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
  };
  const auto is_place = [&](char c) {
    return is_scheme(c) || c == '_' || c == ':' || c == '[' || c == ']';
  };
  const std::string_view scheme = text.substr(0, colon), place = text.substr(colon + 3);
  return std::all_of(scheme.begin(), scheme.end(), is_scheme) && !place.empty() &&
         std::all_of(place.begin(), place.end(), is_place);
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
    allow(origin, &reply.headers);
    reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE");
    reply.headers.emplace_back("Access-Control-Max-Age", "600");
    const std::string* headers = request.header("Access-Control-Request-Headers");
    if (headers != nullptr) reply.headers.emplace_back("Access-Control-Allow-Headers", *headers);
  }
  exchange.send(std::move(reply));
  return true;
}

std::shared_ptr<http::Exchange> with_cors(std::shared_ptr<http::Exchange> exchange,
                                          const std::string& origin) {
  return std::make_shared<CorsExchange>(std::move(exchange), origin);
}

}  // namespace tarn::serve::api
