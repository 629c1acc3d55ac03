#include "serve/api/errors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "serve/service/session_service.h"
#include "serve/store.h"

namespace tarn::serve::api {
namespace {

/// How long a client shall leave a store alone that failed.
constexpr double kStoreRetrySeconds = 5;
/// Another server takes over a draining one's work about so soon.
constexpr double kDrainRetrySeconds = 2;
/// A session that another turn has is free about so soon.
constexpr double kSessionRetrySeconds = 1;

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

/// Fields of a request name themselves; anything else an error is about is no parameter.
std::string param_of(const std::string& where) {
  if (where.rfind("session ", 0) == 0) return "session";
  return where.find_first_of(" :/") == std::string::npos ? where : std::string();
}

/// Which of a store's two checks failed says nothing to clients: the message names the session.
std::string message_of(const Error& error) {
  const bool checked = error.where == kLeaseConflict || error.where == kSeqConflict;
  return checked ? error.message : error.to_string();
}

Failure store_failure(const Error& error) {
  const std::string message = message_of(error);
  // The table of sessions: memory for states, which others give back.
  if (error.code == ErrorCode::kResource && error.where == "sessions") {
    return {429, "overloaded", message, {}, kSessionRetrySeconds};
  }
  switch (error.code) {
    case ErrorCode::kResource: return {507, "store_full", message};
    case ErrorCode::kReadOnly: return {503, "store_read_only", message, {}, kStoreRetrySeconds};
    case ErrorCode::kIo: return {503, "store_failed", message, {}, kStoreRetrySeconds};
    case ErrorCode::kCorrupt: return {422, "session_damaged", message, "session"};
    case ErrorCode::kUnsupported:
    case ErrorCode::kInvalidArgument: return {422, "session_unusable", message, "session"};
    case ErrorCode::kNotFound: return {404, "session_not_found", message, "session"};
    case ErrorCode::kCancelled: return {503, "shutting_down", message, {}, kDrainRetrySeconds};
    case ErrorCode::kConflict: break;
  }
  return {409, "session_conflict", message, "session", kSessionRetrySeconds};
}

}  // namespace

Json error_json(const Failure& failure) {
  Json error = Json::Object{
      {"message", failure.message},
      {"type", type_of(failure.status)},
      {"param", failure.param.empty() ? Json() : Json(failure.param)},
      {"code", failure.code},
  };
  return Json::Object{{"error", std::move(error)}};
}

http::Reply error_reply(const Failure& failure) {
  http::Reply reply;
  reply.status = failure.status;
  reply.body = error_json(failure).dump();
  if (failure.retry_after_seconds > 0) {
    const auto seconds = static_cast<int64_t>(std::ceil(failure.retry_after_seconds));
    reply.headers.emplace_back("Retry-After", std::to_string(seconds));
  }
  if (failure.final) reply.headers.emplace_back("X-Should-Retry", "false");
  return reply;
}

Failure field_failure(const Error& error) {
  if (error.code == ErrorCode::kNotFound) {
    return {404, "model_not_found", error.to_string(), error.where};
  }
  if (error.where == "body") return {400, "invalid_json", error.to_string()};
  const bool unsupported = error.code == ErrorCode::kUnsupported;
  return {400, unsupported ? "unsupported_parameter" : "invalid_value", error.to_string(),
          param_of(error.where)};
}

Failure refusal_failure(const Refusal& refusal) {
  const Error& error = refusal.error;
  const std::string message = message_of(error);
  switch (refusal.reason) {
    case RefusalReason::kInvalid:
      // A session that belongs to another model is no mistake in the request's form.
      if (param_of(error.where) == "session" && error.where != "session") {
        return store_failure(error);
      }
      return {400, "invalid_value", message, param_of(error.where)};
    case RefusalReason::kNotFound: return {404, "session_not_found", message, "session"};
    case RefusalReason::kConflict:
      if (error.where == "idempotency_key") {
        return {422, "idempotency_key_reused", message, "idempotency_key"};
      }
      if (error.where == kLostTurns) {
        return {409, "session_changed", error.message, "session", 0, true};
      }
      return {409, "session_in_use", message, "session",
              refusal.retry_after_seconds > 0 ? refusal.retry_after_seconds : kSessionRetrySeconds};
    case RefusalReason::kPrecondition: return {412, "seq_mismatch", message, "if_seq", 0, true};
    case RefusalReason::kFull:
      return {429, "overloaded", message, {}, std::max(refusal.retry_after_seconds, 1.0)};
    case RefusalReason::kDraining: return {503, "shutting_down", message, {}, kDrainRetrySeconds};
    case RefusalReason::kFailed: break;
  }
  return store_failure(error);
}

Failure turn_failure(const TurnEnd& end) {
  if (end.reason == FinishReason::kCancelled) {
    return {503,
            "shutting_down",
            "the turn was cancelled: the server is shutting down",
            {},
            kDrainRetrySeconds};
  }
  if (end.reason == FinishReason::kDeadline) {
    return {503,
            "turn_timeout",
            "the turn took longer than this server allows and changed nothing",
            {},
            0,
            true};
  }
  const Error& error = end.error;
  if (error.code == ErrorCode::kInvalidArgument) {
    return {400, "invalid_value", error.to_string(), param_of(error.where)};
  }
  return store_failure(error);
}

Failure session_failure(const Error& error, const std::string& created) {
  if (error.code == ErrorCode::kInvalidArgument && error.where.rfind("session ", 0) != 0) {
    return {400, "invalid_value", error.to_string(), param_of(error.where)};
  }
  Failure failure = store_failure(error);
  if (error.code == ErrorCode::kNotFound && error.where.find(", version ") != std::string::npos) {
    failure.code = "version_not_found";
    failure.param = "seq";
    failure.message = "seq: " + failure.message;
  }
  if (error.code == ErrorCode::kConflict && error.where == "session " + created) {
    failure = {409, "session_exists", "id: " + failure.message, "id", 0, true};
  }
  return failure;
}

}  // namespace tarn::serve::api
