// The routes below /v1/sessions.
#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "serve/api/call.h"
#include "serve/store.h"

namespace tarn::serve::api {
namespace {

constexpr int kDefaultPage = 100;
constexpr int kLargestPage = 1000;

Json seconds(int64_t milliseconds) { return milliseconds > 0 ? Json(milliseconds / 1000) : Json(); }

Json session_json(const SessionView& view) {
  Json::Array versions;
  for (const KeptVersion& version : view.versions) {
    versions.push_back(Json::Object{
        {"seq", version.seq},
        {"token_count", version.token_count},
        {"payload_bytes", version.payload_bytes},
        {"written_at", seconds(version.written_ms)},
        {"parent", version.parent.id.empty() ? Json()
                                             : Json(Json::Object{{"id", version.parent.id},
                                                                 {"seq", version.parent.seq}})},
    });
  }
  Json json;
  json.set("id", view.id);
  json.set("object", "session");
  json.set("seq", view.seq);
  json.set("token_count", view.token_count);
  json.set("state_bytes", view.state_bytes);
  json.set("payload_bytes", view.payload_bytes);
  json.set("resident", view.resident);
  json.set("in_use", view.in_use);
  json.set("unsaved", view.unsaved);
  json.set("durability", durability_name(view.durability));
  json.set("created_at", seconds(view.created_ms));
  json.set("last_use_at", seconds(view.last_use_ms));
  json.set("ttl_seconds", seconds(view.expires_ms > 0 ? view.expires_ms - view.last_use_ms : 0));
  json.set("expires_at", seconds(view.expires_ms));
  json.set("model_fingerprint", fmt::format("{:016x}", view.model_fingerprint));
  json.set("versions", std::move(versions));
  return json;
}

Error bad_id(const char* where) {
  return invalid_argument("is no session id: wanted 1 to 64 of the characters A-Z a-z 0-9 _ -",
                          where);
}

/// The optional id of a new session.
Result<std::string> read_id(JsonReader& reader) {
  std::string id = reader.string("id", "");
  if (reader.optional("id") != nullptr && !is_session_id(id)) return bad_id("id");
  return id;
}

/// A body without members.
Status read_nothing(const std::string& text) {
  TARN_ASSIGN(const Json body, parse_body(text));
  JsonReader reader(body, "");
  return finish(reader, body);
}

Result<NewSession> read_new_session(const std::string& text, int64_t ttl_ms, SavePolicy save) {
  TARN_ASSIGN(const Json body, parse_body(text));
  JsonReader reader(body, "");
  NewSession session;
  TARN_ASSIGN(session.id, read_id(reader));
  if (const auto seed = optional_integer(reader, "seed", INT64_MIN, INT64_MAX)) {
    session.seed = static_cast<uint64_t>(*seed);
  }
  const auto ttl = optional_integer(reader, "ttl_seconds", 0, StoreOptions().max_ttl_ms / 1000);
  session.ttl_ms = ttl ? *ttl * 1000 : ttl_ms;
  const size_t policy =
      reader.choice("save", {"turn", "manual"}, save == SavePolicy::kManual ? 1 : 0);
  session.policy = policy == 1 ? SavePolicy::kManual : SavePolicy::kTurn;
  TARN_RETURN_IF_ERROR(finish(reader, body));
  return session;
}

struct ForkFields {
  std::optional<int64_t> seq;
  std::string id;
};

Result<ForkFields> read_fork(const std::string& text) {
  TARN_ASSIGN(const Json body, parse_body(text));
  JsonReader reader(body, "");
  ForkFields fields;
  TARN_ASSIGN(fields.id, read_id(reader));
  fields.seq = optional_integer(reader, "seq", 1, INT64_MAX);
  TARN_RETURN_IF_ERROR(finish(reader, body));
  return fields;
}

Result<int64_t> read_seq(const std::string& text) {
  TARN_ASSIGN(const Json body, parse_body(text));
  JsonReader reader(body, "");
  const int64_t seq = reader.integer("seq", 1, INT64_MAX);
  TARN_RETURN_IF_ERROR(finish(reader, body));
  return seq;
}

/// The value of a query parameter that is a number from 1 to `most`.
Result<int> read_limit(const std::optional<std::string>& text) {
  if (!text) return kDefaultPage;
  int limit = 0;
  const char* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, limit);
  if (parsed.ec == std::errc() && parsed.ptr == end && limit >= 1 && limit <= kLargestPage) {
    return limit;
  }
  return invalid_argument(
      fmt::format("must be an integer from 1 to {}, got {}", kLargestPage, json_quote(*text, 40)),
      "limit");
}

}  // namespace

void Api::create_session(const Call& call) {
  const auto session =
      read_new_session(call.request.body, options_.default_ttl_ms, options_.default_save);
  if (!session.ok()) return call.fail(field_failure(session.error()));
  const auto view = service_.create_session(*session);
  if (!view.ok()) return fail(call, view.error(), session->id);
  call.answer(session_json(*view), 201);
}

void Api::list_sessions(const Call& call) {
  const auto limit = read_limit(call.request.parameter("limit"));
  if (!limit.ok()) return call.fail(field_failure(limit.error()));
  const auto page = service_.list(call.request.parameter("page_token").value_or(""), *limit);
  if (!page.ok()) return call.fail(session_failure(page.error()));
  Json::Array list;
  for (const SessionView& view : page->sessions) list.push_back(session_json(view));
  call.answer(Json::Object{{"object", "list"},
                           {"data", std::move(list)},
                           {"has_more", !page->next.empty()},
                           {"next_page_token", page->next.empty() ? Json() : Json(page->next)}});
}

/// Of the calls on sessions; `created`: see session_failure.
void Api::fail(const Call& call, const Error& error, const std::string& created) {
  Failure failure = session_failure(error, created);
  if (error.where == kLeaseConflict) {
    const double rest = service_.lease_seconds(created.empty() ? call.path_id : created);
    if (rest > 0) failure.retry_after_seconds = rest;
  }
  call.fail(failure);
}

/// Of the calls on one session: what they answer.
void Api::answer_view(const Call& call, const Result<SessionView>& view) {
  if (!view.ok()) return fail(call, view.error());
  call.answer(session_json(*view));
}

bool Api::check_path_id(const Call& call) {
  if (is_session_id(call.path_id)) return true;
  call.fail(field_failure(bad_id("id")));
  return false;
}

/// As check_path_id, and the body must say nothing.
bool Api::check_bare(const Call& call) {
  if (!check_path_id(call)) return false;
  const Status status = read_nothing(call.request.body);
  if (!status.ok()) call.fail(field_failure(status.error()));
  return status.ok();
}

void Api::get_session(const Call& call) {
  if (check_path_id(call)) answer_view(call, service_.get(call.path_id));
}

void Api::remove_session(const Call& call) {
  if (!check_bare(call)) return;
  const Status status = service_.remove(call.path_id);
  if (!status.ok()) return fail(call, status.error());
  call.answer(Json::Object{{"id", call.path_id}, {"object", "session"}, {"deleted", true}});
}

void Api::fork_session(const Call& call) {
  if (!check_path_id(call)) return;
  const auto fields = read_fork(call.request.body);
  if (!fields.ok()) return call.fail(field_failure(fields.error()));
  const auto view = service_.fork(call.path_id, fields->seq, fields->id);
  if (!view.ok()) return fail(call, view.error(), fields->id);
  call.answer(session_json(*view), 201);
}

void Api::rollback_session(const Call& call) {
  if (!check_path_id(call)) return;
  const auto seq = read_seq(call.request.body);
  if (!seq.ok()) return call.fail(field_failure(seq.error()));
  answer_view(call, service_.rollback(call.path_id, *seq));
}

void Api::save_session(const Call& call) {
  if (check_bare(call)) answer_view(call, service_.save(call.path_id));
}

void Api::pause_session(const Call& call) {
  if (check_bare(call)) answer_view(call, service_.pause(call.path_id));
}

void Api::resume_session(const Call& call) {
  if (!check_bare(call)) return;
  const auto view = service_.resume(call.path_id);
  if (!view.ok()) return fail(call, view.error());
  Json json = session_json(*view);
  json.set("tokens_recomputed", 0);  // the state is loaded, never computed
  call.answer(json);
}

}  // namespace tarn::serve::api
