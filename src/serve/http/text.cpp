#include "serve/http/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <iterator>
#include <random>

#include "base/json.h"

namespace tarn::serve::http {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_alphanumeric(char c) {
  return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9');
}

bool is_token(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return is_alphanumeric(c) ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 410: return "Gone";
    case 412: return "Precondition Failed";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    default: return "Status";
  }
}

/// RFC 9110, 5.6.7; by hand because strftime follows the locale.
std::string date_now() {
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
                     kDays[static_cast<size_t>(utc.tm_wday)], utc.tm_mday,
                     kMonths[static_cast<size_t>(utc.tm_mon)], utc.tm_year + 1900, utc.tm_hour,
                     utc.tm_min, utc.tm_sec);
}

/// Those that frame the message are the server's alone.
bool is_ours(std::string_view name) {
  for (const char* ours :
       {"content-length", "transfer-encoding", "connection", "content-type", "x-request-id"}) {
    if (equal_names(name, ours)) return true;
  }
  return false;
}

void append_field(std::string_view name, std::string_view value, std::string* out) {
  *out += name;
  *out += ": ";
  for (const char c : value) {
    // A line break would begin another field.
    *out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  *out += "\r\n";
}

}  // namespace

bool equal_names(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

bool has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

std::string format_head(const AnswerForm& form, int status, std::string_view content_type,
                        const Headers& headers, int64_t length) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  append_field("Date", date_now(), &head);
  append_field("X-Request-Id", form.id, &head);
  if (!content_type.empty()) append_field("Content-Type", content_type, &head);
  for (const Headers* some : {&headers, &form.headers}) {
    for (const auto& [name, value] : *some) {
      if (is_token(name) && !is_ours(name)) append_field(name, value, &head);
    }
  }
  if (length < 0) {
    if (form.http11) head += "Transfer-Encoding: chunked\r\n";
  } else if (!has_no_body(status)) {
    append_field("Content-Length", std::to_string(length), &head);
  }
  if (!form.keep_alive) {
    head += "Connection: close\r\n";
  } else if (!form.http11) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

void append_chunk(std::string_view bytes, std::string* out) {
  if (bytes.empty()) return;
  fmt::format_to(std::back_inserter(*out), "{:x}\r\n", bytes.size());
  *out += bytes;
  *out += "\r\n";
}

std::string request_id(const std::string* wanted) {
  if (wanted != nullptr && !wanted->empty() && wanted->size() <= 64 &&
      std::all_of(wanted->begin(), wanted->end(),
                  [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; })) {
    return *wanted;
  }
  // One number for each, mixed so that neighbours look different (splitmix64).
  static const uint64_t start = uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  static std::atomic<uint64_t> count{0};
  uint64_t x = start + 0x9e3779b97f4a7c15 * ++count;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return fmt::format("{:016x}", x ^ (x >> 31));
}

const std::string* Request::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_names(key, name)) return &value;
  }
  return nullptr;
}

int64_t Request::count(std::string_view name) const {
  return std::count_if(headers.begin(), headers.end(),
                       [name](const auto& header) { return equal_names(header.first, name); });
}

std::optional<std::string> Request::parameter(std::string_view name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const size_t equals = std::min(item.find('='), item.size());
    if (percent_decode(item.substr(0, equals)) != name) continue;
    return percent_decode(item.substr(std::min(equals + 1, item.size())));
  }
  return std::nullopt;
}

std::optional<std::string> percent_decode(std::string_view text) {
  const auto digit = [](char c) {
    c = lower(c);
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = digit(text[i + 1]);
    const int low = digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

Reply error_reply(int status, std::string_view code, std::string_view message) {
  const char* type = "invalid_request_error";
  if (status == 401) type = "authentication_error";
  if (status == 403) type = "permission_error";
  if (status == 404) type = "not_found_error";
  if (status == 429) type = "rate_limit_error";
  if (status >= 500) type = status == 503 ? "unavailable_error" : "server_error";
  Json error;
  error.set("message", message);
  error.set("type", type);
  error.set("param", nullptr);
  error.set("code", code);
  Json body;
  body.set("error", std::move(error));
  return {.status = status, .body = body.dump()};
}

}  // namespace tarn::serve::http
