#include "serve/http/parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>

#include "serve/http/text.h"

namespace tarn::serve::http {

namespace beast = boost::beast::http;
using boost::beast::error_code;
using BeastText = boost::beast::string_view;

namespace {

std::string_view view(BeastText text) { return {text.data(), text.size()}; }

/// A last chunk and its end are no shorter, so this many bytes always follow a chunked header.
/// Beast counts on having them.
constexpr size_t kShortestChunks = 5;

}  // namespace

struct RequestParser::Impl final : beast::basic_parser<true> {
  explicit Impl(const Limits& wanted) : limits(wanted) {
    header_limit(static_cast<uint32_t>(limits.header_bytes));
    body_limit(static_cast<uint64_t>(limits.body_bytes));
  }

  void fail(error_code& ec, int status, std::string code, std::string message,
            Refused reason = Refused::kMalformed) {
    failure = {status, reason, std::move(code), std::move(message)};
    ec = beast::error::bad_value;  // any: what is told is `failure`
  }

  void fail_long_header(error_code& ec) {
    fail(ec, 431, "header_too_long",
         "the request's header is longer than the limit of " + std::to_string(limits.header_bytes) +
             " bytes",
         Refused::kHeader);
  }

  void on_request_impl(beast::verb, BeastText method, BeastText target, int version,
                       error_code& ec) override {
    http11 = version == 11;
    request.method = view(method);
    request.head = request.method == "HEAD";
    if (request.head) request.method = "GET";
    if (request.method == "CONNECT") {
      return fail(ec, 501, "method_not_supported", "this server is no proxy: CONNECT");
    }
    split_target(view(target), ec);
  }

  void split_target(std::string_view target, error_code& ec) {
    if (target == "*" && request.method == "OPTIONS") {
      request.path = "*";
      return;
    }
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (!target.starts_with(scheme)) continue;
      const size_t end = target.find_first_of("/?", scheme.size());
      target = end == std::string_view::npos ? std::string_view() : target.substr(end);
      if (!target.starts_with('/')) request.path = "/";
      break;
    }
    if (request.path.empty() && !target.starts_with('/')) {
      return fail(ec, 400, "malformed_request", "the request's target has no path");
    }
    const size_t query = target.find('?');
    request.path += target.substr(0, query);
    if (query != std::string_view::npos) request.query = target.substr(query + 1);
  }

  void on_field_impl(beast::field field, BeastText name, BeastText value, error_code& ec) override {
    if (++fields > limits.header_fields) {
      return fail(
          ec, 431, "too_many_header_fields",
          "the request has more than " + std::to_string(limits.header_fields) + " header fields",
          Refused::kHeader);
    }
    if (header_done) return;  // a trailer: nobody here knows one
    if (field == beast::field::transfer_encoding) check_coding(view(value), ec);
    if (field == beast::field::expect) {
      const bool known = equal_names(view(value), "100-continue");
      expects_continue = known && http11;
      if (!known) fail(ec, 417, "expectation_failed", "the request has an unknown expectation");
    }
    if (field == beast::field::host) ++hosts;
    request.headers.emplace_back(view(name), view(value));
  }

  void check_coding(std::string_view value, error_code& ec) {
    if (!http11) {
      fail(ec, 400, "malformed_request", "HTTP/1.0 has no transfer codings");
    } else if (!equal_names(value, "chunked")) {
      fail(ec, 501, "transfer_coding_not_supported", "the only transfer coding here is chunked");
    }
  }

  void on_header_impl(error_code& ec) override {
    if (hosts > 1 || (http11 && hosts == 0)) {
      fail(ec, 400, "malformed_request",
           "the request has " + std::to_string(hosts) + " Host fields, wanted one");
    }
  }

  void on_chunk_header_impl(uint64_t, BeastText extension, error_code& ec) override {
    header_used += extension.size();
    if (header_used > static_cast<size_t>(limits.header_bytes)) fail_long_header(ec);
  }

  size_t on_body_impl(BeastText bytes, error_code&) override {
    request.body += view(bytes);
    return bytes.size();
  }
  size_t on_chunk_body_impl(uint64_t, BeastText bytes, error_code&) override {
    request.body += view(bytes);
    return bytes.size();
  }

  void on_response_impl(int, BeastText, int, error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  /// What Beast itself found wrong.
  void translate(error_code ec) {
    error_code ignored;
    if (ec == beast::error::header_limit) {
      fail_long_header(ignored);
    } else if (ec == beast::error::body_limit) {
      fail(ignored, 413, "body_too_long",
           "the request's body is longer than the limit of " + std::to_string(limits.body_bytes) +
               " bytes",
           Refused::kBody);
    } else if (ec == beast::error::bad_version) {
      fail(ignored, 505, "version_not_supported", "this server speaks HTTP/1.1 and HTTP/1.0");
    } else {
      fail(ignored, 400, "malformed_request", "malformed HTTP: " + ec.message());
    }
  }

  const Limits& limits;
  Request request;
  Failure failure;
  bool http11 = true;
  bool header_done = false;
  bool expects_continue = false;
  int64_t fields = 0;
  int hosts = 0;
  size_t header_used = 0;  ///< bytes of the header and of chunk extensions
};

RequestParser::RequestParser(const Limits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

RequestParser::Step RequestParser::put(std::string_view bytes, size_t* used) {
  Impl& parser = *impl_;
  *used = 0;
  if (bytes.empty() || (parser.header_done && parser.chunked() && bytes.size() < kShortestChunks)) {
    return Step::kMore;
  }
  error_code ec;
  *used = parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  const size_t left = bytes.size() - *used;
  if (ec == beast::error::need_more) ec = {};
  if (!parser.header_done) {
    parser.header_used += *used;
    const bool done = !ec && parser.is_header_done();
    const size_t length = parser.header_used + (done ? 0 : left);
    if (!ec && length > static_cast<size_t>(parser.limits.header_bytes)) {
      parser.fail_long_header(ec);
    }
    if (!ec && done) {
      parser.header_done = true;
      return parser.is_done() ? Step::kDone : Step::kHeader;
    }
  } else if (!ec && *used == 0 && left > static_cast<size_t>(parser.limits.header_bytes)) {
    parser.fail_long_header(ec);  // an endless chunk header or trailer
  }
  if (ec) {
    if (parser.failure.message.empty()) parser.translate(ec);
    return Step::kFailed;
  }
  return parser.is_done() ? Step::kDone : Step::kMore;
}

Request& RequestParser::request() { return impl_->request; }
bool RequestParser::http11() const { return impl_->http11; }
bool RequestParser::keep_alive() const { return impl_->is_done() && impl_->keep_alive(); }
bool RequestParser::expects_continue() const { return impl_->expects_continue; }
const Failure& RequestParser::failure() const { return impl_->failure; }

}  // namespace tarn::serve::http
