#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace tarn::serve::api {

/// A request's body as an object without the members that are null, which count as absent. An empty
/// body is an empty object. Errors: kCorrupt, where "body".
Result<Json> parse_body(const std::string& body);

/// A parameter of the OpenAI interface that would change the result and that this server does not
/// have; `neutral` are the values, as JSON, that ask for nothing.
struct Unsupported {
  const char* name;
  std::initializer_list<const char*> neutral;
};

/// Marks the parameters as known. Errors: the first one that asks for something (kUnsupported).
Status refuse_unsupported(JsonReader& reader, std::span<const Unsupported> parameters);
/// Marks parameters as known that change nothing about a result, whatever their values.
void accept_harmless(JsonReader& reader, std::span<const char* const> names);

/// The member as an integer, if it is there; as JsonReader::integer.
std::optional<int64_t> optional_integer(JsonReader& reader, const char* key, int64_t min,
                                        int64_t max);

/// JsonReader::finish(), with an unknown member as the error's `where`.
Status finish(JsonReader& reader, const Json& object);

}  // namespace tarn::serve::api
