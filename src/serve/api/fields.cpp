#include "serve/api/fields.h"

#include <algorithm>
#include <cmath>

namespace tarn::serve::api {
namespace {

/// Bounds what a body of many small values takes in memory: 40 bytes each.
constexpr int64_t kMaxValues = int64_t{1} << 20;

/// Equal as numbers, too: 0.0 is 0.
bool same_value(const Json& value, std::string_view json) {
  const double* number = value.as_double();
  const bool whole = number != nullptr && std::trunc(*number) == *number && std::abs(*number) < 1e9;
  return (whole ? Json(static_cast<int64_t>(*number)) : value).dump() == json;
}

}  // namespace

Result<Json> parse_body(const std::string& body) {
  if (body.empty()) return Json(Json::Object());
  JsonLimits limits;
  limits.max_bytes = static_cast<int64_t>(body.size());  // the HTTP server has a limit of its own
  limits.max_values = kMaxValues;
  TARN_ASSIGN(Json json, parse_json(body, "body", limits));
  Json::Object* object = json.as_object();
  if (object == nullptr) {
    return corrupt(std::string("must be a JSON object, got ") + json.type_name(), "body");
  }
  std::erase_if(*object, [](const Json::Member& member) { return member.second.is_null(); });
  return json;
}

Status refuse_unsupported(JsonReader& reader, std::span<const Unsupported> parameters) {
  for (const Unsupported& parameter : parameters) {
    const Json* value = reader.optional(parameter.name);
    if (value == nullptr) continue;
    const auto& neutral = parameter.neutral;
    if (std::any_of(neutral.begin(), neutral.end(),
                    [&](const char* json) { return same_value(*value, json); })) {
      continue;
    }
    std::string message = "is not supported here";
    if (neutral.size() > 0) message += std::string("; leave it out or send ") + *neutral.begin();
    return Error{ErrorCode::kUnsupported, message, parameter.name};
  }
  return {};
}

void accept_harmless(JsonReader& reader, std::span<const char* const> names) {
  for (const char* name : names) reader.optional(name);
}

std::optional<int64_t> optional_integer(JsonReader& reader, const char* key, int64_t min,
                                        int64_t max) {
  const bool given = reader.optional(key) != nullptr;
  const int64_t value = reader.integer(key, min, max, min);
  return given ? std::optional(value) : std::nullopt;
}

Status finish(JsonReader& reader, const Json& object) {
  Status status = reader.finish();
  if (status.ok() || !status.error().where.empty() || object.as_object() == nullptr) return status;
  for (const auto& [key, value] : *object.as_object()) {
    const bool known = std::any_of(reader.keys().begin(), reader.keys().end(),
                                   [&, &name = key](const JsonKey& k) { return k.name == name; });
    if (known) continue;
    constexpr size_t kTold = 80;
    return Error{ErrorCode::kUnsupported, "is no parameter that this server knows",
                 key.size() > kTold ? json_quote(key, kTold) : key};
  }
  return status;
}

}  // namespace tarn::serve::api
