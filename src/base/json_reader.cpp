#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace tarn {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

/// What a message shows of a wrong value: scalars as written, containers by type.
std::string describe(const Json& value) {
  if (value.as_array() != nullptr || value.as_object() != nullptr || value.is_null()) {
    return value.type_name();
  }
  if (const std::string* text = value.as_string()) return json_quote(*text, 60);
  return value.dump();
}

}  // namespace

JsonReader::JsonReader(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (object_.as_object() == nullptr) {
    status_ = invalid_argument("must be an object, got " + describe(object_), where_);
  }
}

std::string JsonReader::path(const char* key) const {
  if (where_.empty()) return key;
  return where_ + (where_.find(": ") == std::string::npos ? ": " : ".") + key;
}

void JsonReader::fail(const char* key, const std::string& message) {
  if (status_.ok()) status_ = invalid_argument(message, path(key));
}

void JsonReader::fail_type(const char* key, const std::string& wanted, const Json& got) {
  fail(key, "must be " + wanted + ", got " + describe(got));
}

const Json* JsonReader::take(JsonKey key) {
  const Json* value = object_.find(key.name);
  if (value == nullptr && key.required) missing_.push_back(key.name);
  keys_.push_back(std::move(key));
  return value;
}

const Json* JsonReader::optional(const char* key) { return take({key, "value"}); }
const Json* JsonReader::required(const char* key) { return take({key, "value", true}); }

int64_t JsonReader::checked_integer(const char* key, const Json& value, int64_t min, int64_t max) {
  const int64_t* integer = value.as_int();
  if (integer == nullptr || *integer < min || *integer > max) {
    fail_type(key, fmt::format("an integer from {} to {}", min, max), value);
    return min;
  }
  return *integer;
}

int64_t JsonReader::integer(const char* key, int64_t min, int64_t max) {
  const Json* value = take({key, "integer", true, min, max, {}, {}});
  return value == nullptr ? min : checked_integer(key, *value, min, max);
}

int64_t JsonReader::integer(const char* key, int64_t min, int64_t max, int64_t fallback) {
  const Json* value = take({key, "integer", false, min, max, {}, fallback});
  return value == nullptr ? fallback : checked_integer(key, *value, min, max);
}

double JsonReader::checked_number(const char* key, const Json& value, double min, double max) {
  double number = std::nan("");
  if (const int64_t* integer = value.as_int()) number = static_cast<double>(*integer);
  if (const double* real = value.as_double()) number = *real;
  if (!(number >= min && number <= max)) {
    fail_type(key, fmt::format("a number from {} to {}", min, max), value);
    return min;
  }
  return number;
}

double JsonReader::number(const char* key, double min, double max) {
  const Json* value = take({key, "number", true, min, max, {}, {}});
  return value == nullptr ? min : checked_number(key, *value, min, max);
}

double JsonReader::number(const char* key, double min, double max, double fallback) {
  const Json* value = take({key, "number", false, min, max, {}, fallback});
  return value == nullptr ? fallback : checked_number(key, *value, min, max);
}

bool JsonReader::boolean(const char* key, bool fallback) {
  const Json* value = take({key, "boolean", false, {}, {}, {}, fallback});
  if (value == nullptr) return fallback;
  if (const bool* boolean = value->as_bool()) return *boolean;
  fail_type(key, "true or false", *value);
  return fallback;
}

std::string JsonReader::checked_string(const char* key, const Json& value) {
  if (const std::string* text = value.as_string()) return *text;
  fail_type(key, "a string", value);
  return {};
}

std::string JsonReader::string(const char* key) {
  const Json* value = take({key, "string", true});
  return value == nullptr ? std::string() : checked_string(key, *value);
}

std::string JsonReader::string(const char* key, const std::string& fallback) {
  const Json* value = take({key, "string", false, {}, {}, {}, fallback});
  return value == nullptr ? fallback : checked_string(key, *value);
}

size_t JsonReader::checked_choice(const char* key, const Json& value,
                                  const std::vector<std::string>& choices) {
  if (const std::string* text = value.as_string()) {
    const auto found = std::find(choices.begin(), choices.end(), *text);
    if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  }
  fail_type(key, "one of " + join(choices), value);
  return 0;
}

size_t JsonReader::choice(const char* key, const std::vector<std::string>& choices) {
  const Json* value = take({key, "choice", true, {}, {}, choices, {}});
  return value == nullptr ? 0 : checked_choice(key, *value, choices);
}

size_t JsonReader::choice(const char* key, const std::vector<std::string>& choices,
                          size_t fallback) {
  const Json* value = take({key, "choice", false, {}, {}, choices, choices[fallback]});
  return value == nullptr ? fallback : checked_choice(key, *value, choices);
}

Status JsonReader::finish() {
  const Json::Object* object = object_.as_object();
  if (object == nullptr) return status_;
  if (missing_.size() == 1) return invalid_argument("is missing", path(missing_[0].c_str()));
  if (!missing_.empty()) {
    return invalid_argument("these keys are missing: " + join(missing_), where_);
  }
  if (!status_.ok()) return status_;
  for (const Json::Member& member : *object) {
    const auto is_it = [&](const JsonKey& key) { return key.name == member.first; };
    if (std::find_if(keys_.begin(), keys_.end(), is_it) != keys_.end()) continue;
    std::vector<std::string> known;
    for (const JsonKey& key : keys_) known.push_back(key.name);
    return invalid_argument(
        "unknown key " + json_quote(member.first) + "; known keys: " + join(known), where_);
  }
  return status_;
}

}  // namespace tarn
