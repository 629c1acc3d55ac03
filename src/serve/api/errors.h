#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"
#include "serve/http/message.h"
#include "serve/request.h"

namespace tarn::serve::api {

/// An error as clients get it. Which failure has which status: docs/server.md.
struct Failure {
  int status = 400;
  std::string code = "invalid_value";
  std::string message = {};
  std::string param = {};          ///< the field that is wrong; empty: none
  double retry_after_seconds = 0;  ///< > 0: when to try again
  bool final = false;              ///< clients that retry this status by themselves must not
};

/// {"error": {"message", "type", "param", "code"}}.
Json error_json(const Failure& failure);
http::Reply error_reply(const Failure& failure);

/// Of a request's fields: 400, or 404 for another model's name.
Failure field_failure(const Error& error);
/// Why a turn was not admitted.
Failure refusal_failure(const Refusal& refusal);
/// Why an admitted turn ended without a result. `end.reason` is kCancelled, kDeadline or kError.
Failure turn_failure(const TurnEnd& end);
/// Of the service's calls on sessions; `created`: the id that the call was to make, if any.
Failure session_failure(const Error& error, const std::string& created = {});

}  // namespace tarn::serve::api
