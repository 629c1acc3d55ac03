#include "base/json.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>  // the library itself: there is no compiled one to link
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

namespace tarn {
namespace {

using boost::json::error_code;
using boost::json::string_view;

/// Where a key occurs twice in `object`, or null.
const std::string* duplicate_key(const Json::Object& object) {
  if (object.size() < 2) return nullptr;
  std::vector<const std::string*> keys;
  keys.reserve(object.size());
  for (const Json::Member& member : object) keys.push_back(&member.first);
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  std::sort(keys.begin(), keys.end(), less);
  for (size_t i = 1; i < keys.size(); ++i) {
    if (*keys[i - 1] == *keys[i]) return keys[i];
  }
  return nullptr;
}

/// Builds a Json from parser events. Boost's own number conversion is up to an ulp off and turns
/// 1e400 into infinity, so numbers are converted here from their text.
class Handler {
 public:
  static constexpr size_t max_array_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_string_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_key_size = std::numeric_limits<size_t>::max();

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_array_begin(error_code& ec) { return open(Json(Json::Array()), ec); }
  bool on_array_end(size_t, error_code&) { return close(); }
  bool on_object_begin(error_code& ec) { return open(Json(Json::Object()), ec); }
  bool on_object_end(size_t, error_code& ec) {
    if (const std::string* key = duplicate_key(*frames_.back().value.as_object())) {
      return reject("duplicate key " + json_quote(*key), ec);
    }
    return close();
  }
  bool on_string_part(string_view part, size_t, error_code&) { return append(part); }
  bool on_string(string_view part, size_t, error_code& ec) {
    append(part);
    return add(Json(std::move(text_)), ec);
  }
  bool on_key_part(string_view part, size_t, error_code&) { return append(part); }
  bool on_key(string_view part, size_t, error_code&) {
    append(part);
    frames_.back().key = std::move(text_);
    text_.clear();
    return true;
  }
  bool on_number_part(string_view part, error_code&) { return append(part); }
  bool on_int64(int64_t value, string_view, error_code& ec) { return add(Json(value), ec); }
  bool on_uint64(uint64_t value, string_view, error_code& ec) {
    return reject("integer " + std::to_string(value) + " is out of range (64 bits, signed)", ec);
  }
  bool on_double(double rough, string_view part, error_code& ec) {
    append(part);
    const bool integral = text_.find_first_of(".eE") == std::string::npos;
    if (integral) {
      return reject("integer " + json_quote(text_, 40) + " is out of range (64 bits, signed)", ec);
    }
    double value = 0;
    const auto end = text_.data() + text_.size();
    const auto parsed = std::from_chars(text_.data(), end, value);
    if (parsed.ec == std::errc::result_out_of_range) {
      if (!(std::abs(rough) < 1.0)) {
        return reject("number " + json_quote(text_, 40) + " is out of range (double)", ec);
      }
      value = 0;  // below the smallest subnormal
    } else if (parsed.ec != std::errc() || parsed.ptr != end) {
      return reject("malformed number", ec);
    }
    return add(Json(value), ec);
  }
  bool on_bool(bool value, error_code& ec) { return add(Json(value), ec); }
  bool on_null(error_code& ec) { return add(Json(), ec); }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

  void set_max_values(int64_t max_values) { values_left_ = max_values; }
  const std::string& message() const { return message_; }
  Json take_root() { return std::move(root_); }

 private:
  struct Frame {
    Json value;
    std::string key;  // of the member that comes next
  };

  bool append(string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool reject(std::string message, error_code& ec) {
    message_ = std::move(message);
    ec = boost::json::error::syntax;
    return false;
  }
  bool open(Json empty, error_code& ec) {
    if (--values_left_ < 0) return reject("too many values", ec);
    frames_.push_back({std::move(empty), {}});
    return true;
  }
  bool close() {
    Json value = std::move(frames_.back().value);
    frames_.pop_back();
    place(std::move(value));
    return true;
  }
  bool add(Json value, error_code& ec) {
    text_.clear();
    if (--values_left_ < 0) return reject("too many values", ec);
    place(std::move(value));
    return true;
  }
  void place(Json value) {
    if (frames_.empty()) {
      root_ = std::move(value);
    } else if (Json::Array* array = frames_.back().value.as_array()) {
      array->push_back(std::move(value));
    } else {
      frames_.back().value.as_object()->emplace_back(std::move(frames_.back().key),
                                                     std::move(value));
    }
  }

  std::vector<Frame> frames_;
  std::string text_;  // of the string, key or number being read
  Json root_;
  int64_t values_left_ = 0;
  std::string message_;
};

std::string line_and_column(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t last = before.rfind('\n');
  const size_t column = last == std::string_view::npos ? before.size() : before.size() - last - 1;
  return "line " + std::to_string(line) + ", column " + std::to_string(column + 1);
}

/// Length of the valid UTF-8 sequence at the start of `text`, or 0 (Unicode 15, table 3-7).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // range of the second byte
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  if (first >= 0xE0 && first <= 0xEF) length = 3;
  if (first >= 0xF0 && first <= 0xF4) length = 4;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

void write_string(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const char c = text[0];
    size_t length = 1;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    } else if ((length = utf8_length(text)) > 0) {
      out.append(text.substr(0, length));
    } else {
      out += "\xEF\xBF\xBD";
      length = 1;
    }
    text.remove_prefix(length);
  }
  out += '"';
}

void write_double(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  out += text;
  // The value must come back as a double, not as an integer.
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void new_line(int indent, int depth, std::string& out) {
  if (indent <= 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' ');
}

void write(const Json& json, int indent, int depth, std::string& out) {
  if (json.is_null()) {
    out += "null";
  } else if (const bool* boolean = json.as_bool()) {
    out += *boolean ? "true" : "false";
  } else if (const int64_t* integer = json.as_int()) {
    out += std::to_string(*integer);
  } else if (const double* number = json.as_double()) {
    write_double(*number, out);
  } else if (const std::string* string = json.as_string()) {
    write_string(*string, out);
  } else if (const Json::Array* array = json.as_array()) {
    out += '[';
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += ',';
      new_line(indent, depth + 1, out);
      write((*array)[i], indent, depth + 1, out);
    }
    if (!array->empty()) new_line(indent, depth, out);
    out += ']';
  } else if (const Json::Object* object = json.as_object()) {
    out += '{';
    for (size_t i = 0; i < object->size(); ++i) {
      if (i > 0) out += ',';
      new_line(indent, depth + 1, out);
      write_string((*object)[i].first, out);
      out += indent > 0 ? ": " : ":";
      write((*object)[i].second, indent, depth + 1, out);
    }
    if (!object->empty()) new_line(indent, depth, out);
    out += '}';
  }
}

}  // namespace

const char* Json::type_name() const {
  constexpr const char* kNames[] = {"null",   "boolean", "integer", "number",
                                    "string", "array",   "object"};
  return kNames[value_.index()];
}

const Json* Json::find(std::string_view key) const {
  const Object* object = as_object();
  if (object == nullptr) return nullptr;
  for (const Member& member : *object) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

void Json::set(std::string key, Json value) {
  if (is_null()) value_ = Object();
  Object* object = as_object();
  TARN_CHECK(object != nullptr);
  for (Member& member : *object) {
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  }
  object->emplace_back(std::move(key), std::move(value));
}

std::string Json::dump(int indent) const {
  std::string out;
  write(*this, indent, 0, out);
  return out;
}

std::string json_quote(std::string_view text, size_t max_bytes) {
  std::string out;
  if (text.size() <= max_bytes) {
    write_string(text, out);
    return out;
  }
  size_t cut = max_bytes;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  write_string(text.substr(0, cut), out);
  out.insert(out.size() - 1, "...");
  return out;
}

Result<Json> parse_json(std::string_view text, const std::string& where, JsonLimits limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return Error{ErrorCode::kResource,
                 "JSON document has " + std::to_string(text.size()) + " bytes, at most " +
                     std::to_string(limits.max_bytes) + " are allowed",
                 where};
  }
  boost::json::parse_options options;
  options.max_depth = static_cast<size_t>(std::max(limits.max_depth, 0));
  boost::json::basic_parser<Handler> parser(options);
  parser.handler().set_max_values(limits.max_values);
  error_code ec;
  const size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (ec) {
    const std::string& own = parser.handler().message();
    std::string reason = own;
    if (own.empty()) {
      reason = ec == boost::json::error::too_deep
                   ? "nested deeper than " + std::to_string(limits.max_depth) + " levels"
               : ec == boost::json::error::incomplete ? "it ends too early"
                                                      : ec.message();
    }
    return corrupt("invalid JSON at " + line_and_column(text, used) + ": " + reason, where);
  }
  if (used < text.size()) {
    return corrupt(
        "invalid JSON at " + line_and_column(text, used) + ": unexpected bytes after the document",
        where);
  }
  return parser.handler().take_root();
}

}  // namespace tarn
