#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tarn {

/// A JSON document as an immutable-by-habit value. Objects keep the order of their keys.
/// Integers that fit int64 stay integers; every other number is a finite double.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;                                             // null
  Json(std::nullptr_t) {}                                       // NOLINT: implicit
  Json(bool value) : value_(value) {}                           // NOLINT: implicit
  Json(int value) : value_(int64_t{value}) {}                   // NOLINT: implicit
  Json(int64_t value) : value_(value) {}                        // NOLINT: implicit
  Json(double value) : value_(value) {}                         // NOLINT: implicit
  Json(const char* value) : value_(std::string(value)) {}       // NOLINT: implicit
  Json(std::string value) : value_(std::move(value)) {}         // NOLINT: implicit
  Json(std::string_view value) : value_(std::string(value)) {}  // NOLINT: implicit
  Json(Array value) : value_(std::move(value)) {}               // NOLINT: implicit
  Json(Object value) : value_(std::move(value)) {}              // NOLINT: implicit

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* as_bool() const { return std::get_if<bool>(&value_); }
  const int64_t* as_int() const { return std::get_if<int64_t>(&value_); }
  const double* as_double() const { return std::get_if<double>(&value_); }
  const std::string* as_string() const { return std::get_if<std::string>(&value_); }
  const Array* as_array() const { return std::get_if<Array>(&value_); }
  const Object* as_object() const { return std::get_if<Object>(&value_); }
  Array* as_array() { return std::get_if<Array>(&value_); }
  Object* as_object() { return std::get_if<Object>(&value_); }

  /// "null", "boolean", "integer", "number", "string", "array" or "object".
  const char* type_name() const;
  /// The member of that key, or null when this is no object or has no such key.
  const Json* find(std::string_view key) const;
  /// Appends or replaces a member; this must be null (becomes an object) or an object.
  void set(std::string key, Json value);

  /// Compact text; doubles round-trip; non-finite numbers become null; strings with invalid UTF-8
  /// get U+FFFD. `indent` > 0 gives one member per line.
  std::string dump(int indent = 0) const;

  bool operator==(const Json&) const = default;

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int64_t max_bytes = int64_t{16} << 20;
  int max_depth = 32;                     ///< nested arrays and objects
  int64_t max_values = int64_t{1} << 22;  ///< of all kinds together; bounds memory
};

/// Parses a whole document. Strict: duplicate keys, numbers out of range, invalid UTF-8, trailing
/// bytes and documents over the limits are errors; `where` names the source in messages.
Result<Json> parse_json(std::string_view text, const std::string& where, JsonLimits limits = {});

/// `text` as a JSON string with its quotes, for messages: control characters are escaped, and a
/// text longer than `max_bytes` is cut and ends in "...".
std::string json_quote(std::string_view text, size_t max_bytes = 120);

/// A key that a reader asked its object for, and what it takes: the documentation of a config.
struct JsonKey {
  std::string name;
  std::string type;  ///< "integer", "number", "boolean", "string", "choice", or "value" for others
  bool required = false;
  Json min = {}, max = {};                ///< of integers and numbers; else null
  std::vector<std::string> choices = {};  ///< of choices; else empty
  Json fallback = {};                     ///< null when required, and for values without one
  bool operator==(const JsonKey&) const = default;
};

/// Reads the members of one object and reports what is missing, mistyped, out of range or unknown,
/// always naming the key's full path. Usage: read everything, then return `reader.finish()`.
class JsonReader {
 public:
  /// `where` is the path of this object, e.g. "config.json: layers[2].mixer".
  JsonReader(const Json& object, std::string where);

  int64_t integer(const char* key, int64_t min, int64_t max);  ///< required
  int64_t integer(const char* key, int64_t min, int64_t max, int64_t fallback);
  double number(const char* key, double min, double max);
  double number(const char* key, double min, double max, double fallback);
  bool boolean(const char* key, bool fallback);
  std::string string(const char* key);
  std::string string(const char* key, const std::string& fallback);
  /// One of `choices`; the index. The error lists them.
  size_t choice(const char* key, const std::vector<std::string>& choices);
  size_t choice(const char* key, const std::vector<std::string>& choices, size_t fallback);
  /// A sub-value for further reading, or null when absent; marks the key as known.
  const Json* optional(const char* key);
  const Json* required(const char* key);

  /// Records an error of the caller's own about `key`.
  void fail(const char* key, const std::string& message);
  /// An error that names all required keys that are missing, or else the first other error, or an
  /// error for the first key that nobody asked for, or success.
  Status finish();
  /// What was asked for so far, in order.
  const std::vector<JsonKey>& keys() const { return keys_; }
  const std::string& where() const { return where_; }
  /// Full path of a member, for messages and for reading a sub-object:
  /// "config.json: layers[2].mixer". A `where` that is a file name alone gets ": ", others ".".
  std::string path(const char* key) const;

 private:
  const Json* take(JsonKey key);
  void fail_type(const char* key, const std::string& wanted, const Json& got);
  std::string checked_string(const char* key, const Json& value);
  int64_t checked_integer(const char* key, const Json& value, int64_t min, int64_t max);
  double checked_number(const char* key, const Json& value, double min, double max);
  size_t checked_choice(const char* key, const Json& value,
                        const std::vector<std::string>& choices);

  const Json& object_;
  std::string where_;
  std::vector<JsonKey> keys_;
  std::vector<std::string> missing_;
  Status status_;
};

}  // namespace tarn
