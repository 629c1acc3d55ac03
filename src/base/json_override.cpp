#include "base/json_override.h"

#include <charconv>
#include <utility>

namespace tarn {
namespace {

/// The member or element that `key` names, or null.
Json* child(Json& json, const std::string& key) {
  if (Json::Object* object = json.as_object()) {
    for (Json::Member& member : *object) {
      if (member.first == key) return &member.second;
    }
  }
  if (Json::Array* array = json.as_array()) {
    size_t index = 0;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), index);
    if (code == std::errc() && end == key.data() + key.size() && index < array->size()) {
      return &(*array)[index];
    }
  }
  return nullptr;
}

/// "a[0].b" as "a.0.b": messages name elements of arrays in brackets.
std::string with_points(const std::string& path) {
  std::string points;
  for (size_t i = 0; i < path.size(); ++i) {
    const size_t end = path[i] == '[' ? path.find(']', i) : std::string::npos;
    const bool closed = end != std::string::npos &&
                        (end + 1 == path.size() || path[end + 1] == '.' || path[end + 1] == '[');
    if (!closed || i == 0) {
      points += path[i];
      continue;
    }
    points += '.' + path.substr(i + 1, end - i - 1);
    i = end;
  }
  return points;
}

}  // namespace

Status apply_override(Json& json, const std::string& assignment) {
  const std::string where = "--set " + assignment;
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    return invalid_argument("wanted key=value, e.g. training.updates=100", where);
  }
  Json* target = &json;
  std::string path = with_points(assignment.substr(0, equals));
  for (size_t point = path.find('.'); point != std::string::npos; point = path.find('.')) {
    Json* next = child(*target, path.substr(0, point));
    if (next == nullptr) {
      return invalid_argument("the config has no \"" + path.substr(0, point) + "\" there", where);
    }
    target = next;
    path.erase(0, point + 1);
  }
  const std::string text = assignment.substr(equals + 1);
  const Result<Json> parsed = parse_json(text, where);
  Json value = parsed.ok() ? *parsed : Json(text);
  Json* old = child(*target, path);
  if (old == nullptr) {
    if (target->as_object() == nullptr) {
      return invalid_argument("the config has no \"" + path + "\" there", where);
    }
    target->set(path, std::move(value));
    return {};
  }
  const bool is_wider = old->as_double() != nullptr && value.as_int() != nullptr;
  const bool is_number = old->as_int() != nullptr && value.as_double() != nullptr;
  if (!is_wider && !is_number && std::string(old->type_name()) != value.type_name()) {
    return invalid_argument(
        std::string("wanted a value of type ") + old->type_name() + ", got " + value.type_name(),
        where);
  }
  *old = std::move(value);
  return {};
}

}  // namespace tarn
