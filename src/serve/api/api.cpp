#include "serve/api/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "serve/api/call.h"
#include "serve/api/cors.h"
#include "serve/api/image_answer.h"
#include "serve/api/metrics_text.h"
#include "serve/api/turn_group.h"
#include "serve/page/page.h"

namespace tarn::serve::api {
namespace {

int64_t now_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

uint64_t random_number() {
  std::random_device chance;
  return uint64_t{chance()} << 32 | chance();
}

/// Whether `path` fits `pattern`; *id gets what stands for "{id}".
bool matches(std::string_view path, std::string_view pattern, std::string* id) {
  constexpr std::string_view kId = "{id}";
  const size_t begin = pattern.find(kId);
  if (begin == std::string_view::npos) return path == pattern;
  const std::string_view tail = pattern.substr(begin + kId.size());
  if (path.size() <= begin + tail.size() || path.substr(0, begin) != pattern.substr(0, begin) ||
      path.substr(path.size() - tail.size()) != tail) {
    return false;
  }
  const std::string_view name = path.substr(begin, path.size() - begin - tail.size());
  // Names of models may have slashes, as in "owner/model"; nothing is below them.
  const bool is_model = pattern.starts_with("/v1/models/");
  if (!is_model && name.find('/') != std::string_view::npos) return false;
  *id = name;
  return true;
}

const char* modality_name(model::Modality modality) {
  switch (modality) {
    case model::Modality::kTokens: return "tokens";
    case model::Modality::kBytes: return "bytes";
    case model::Modality::kImage: return "image";
    case model::Modality::kFrames: return "frames";
  }
  return "";
}

/// Pages elsewhere can make a browser send forms and plain text here, but not JSON.
bool has_json_type(const http::Request& request) {
  constexpr std::string_view kJson = "application/json";
  const std::string* type = request.header("Content-Type");
  if (type == nullptr || type->size() < kJson.size()) return false;
  return std::equal(kJson.begin(), kJson.end(), type->begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
}

/// The first name in a query that is not in `known`, if any.
std::optional<std::string> unknown_parameter(std::string_view query,
                                             std::initializer_list<const char*> known) {
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(item.size() + 1, query.size()));
    if (item.empty()) continue;
    const std::string_view raw = item.substr(0, item.find('='));
    const std::string name = http::percent_decode(raw).value_or(std::string(raw));
    if (std::find(known.begin(), known.end(), name) == known.end()) return name;
  }
  return std::nullopt;
}

}  // namespace

struct Api::Route {
  const char* method;
  const char* pattern;
  void (Api::*handler)(const Call&);
  bool open = false;                                   // without a key
  std::initializer_list<const char*> parameters = {};  // of the query
};

const Api::Route Api::kRoutes[] = {
    {"GET", "/livez", &Api::live, true},
    {"GET", "/readyz", &Api::ready, true},
    {"GET", "/metrics", &Api::metrics},
    {"GET", "/v1/models", &Api::models},
    {"GET", "/v1/models/{id}", &Api::model},
    {"POST", "/v1/completions", &Api::completions},
    {"POST", "/v1/chat/completions", &Api::chat_completions},
    {"POST", "/v1/images/generations", &Api::images},
    {"POST", "/v1/sessions", &Api::create_session},
    {"GET", "/v1/sessions", &Api::list_sessions, false, {"limit", "page_token"}},
    {"GET", "/v1/sessions/{id}", &Api::get_session},
    {"DELETE", "/v1/sessions/{id}", &Api::remove_session},
    {"POST", "/v1/sessions/{id}/fork", &Api::fork_session},
    {"POST", "/v1/sessions/{id}/rollback", &Api::rollback_session},
    {"POST", "/v1/sessions/{id}/save", &Api::save_session},
    {"POST", "/v1/sessions/{id}/pause", &Api::pause_session},
    {"POST", "/v1/sessions/{id}/resume", &Api::resume_session},
};

Api::Api(SessionService& service, ApiOptions options)
    : service_(service),
      options_(std::move(options)),
      keys_(options_.keys),
      started_(now_seconds()),
      fingerprint_(
          fmt::format("tarn-{}-{:016x}", options_.version, service.model()->fingerprint())) {}

std::string Api::client(const http::Request& request) const {
  const std::string* name = keys_.empty() ? nullptr : keys_.find(request);
  return name != nullptr ? "key " + *name : "address " + request.peer;
}

void Api::handle(const http::Request& request, const std::shared_ptr<http::Exchange>& exchange) {
  if (const page::File* file = page::find(request.path)) {
    return exchange->send(page::answer(*file, request));
  }
  Call call{request, exchange, {}, {}};
  if (!options_.cors_origin.empty() && answer_preflight(request, options_.cors_origin, *exchange)) {
    return;
  }
  if (request.method != "GET" && is_foreign(request, options_.cors_origin)) {
    return call.fail({403, "foreign_origin",
                      "pages of " + json_quote(*request.header("Origin"), 80) +
                          " may not call this server (--cors lets those of one origin)"});
  }
  const Route* found = nullptr;
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (!matches(request.path, route.pattern, &call.path_id)) continue;
    if (request.method == route.method) found = &route;
    allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
  }
  const bool open = found != nullptr && found->open;
  if (!open && !keys_.empty() && keys_.find(request) == nullptr) {
    http::Reply reply =
        error_reply({401, "invalid_api_key", "wanted an API key: \"Authorization: Bearer KEY\""});
    reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return call.exchange->send(std::move(reply));
  }
  if (allowed.empty()) {
    return call.fail({404, "unknown_url", "there is nothing at " + json_quote(request.path, 80)});
  }
  if (found == nullptr) {
    http::Reply reply =
        error_reply({405, "method_not_allowed", request.path + " takes " + allowed + " only"});
    reply.headers.emplace_back("Allow", allowed);
    return call.exchange->send(std::move(reply));
  }
  if (!request.body.empty() && request.method == "POST" && !has_json_type(request)) {
    const std::string* type = request.header("Content-Type");
    return call.fail({415, "unsupported_media_type",
                      "wanted Content-Type: application/json, got " +
                          (type == nullptr ? std::string("none") : json_quote(*type, 80))});
  }
  if (const int64_t keys = request.count("Idempotency-Key"); keys > 1) {
    return call.fail({400, "invalid_value",
                      fmt::format("got {} headers Idempotency-Key, wanted one at most", keys),
                      "idempotency_key"});
  }
  if (request.path.starts_with("/v1/")) {
    if (const auto name = unknown_parameter(request.query, found->parameters)) {
      return call.fail({400, "unsupported_parameter",
                        json_quote(*name, 40) + " is no parameter of this URL's query", *name});
    }
  }
  call.client = client(request);
  (this->*found->handler)(call);
}

AnswerHead Api::answer_head(const char* prefix) const {
  return {fmt::format("{}{:016x}{:016x}", prefix, random_number(), random_number()), now_seconds(),
          options_.model_name, fingerprint_};
}

SessionTurn Api::make_turn(const Call& call, const TurnFields& fields, size_t choice,
                           std::vector<int32_t> prompt) const {
  SessionTurn turn;
  turn.request.session = fields.session;
  turn.request.prompt = std::move(prompt);
  turn.request.sampler = fields.sampler;
  turn.request.max_tokens = fields.max_tokens;
  turn.request.stop = fields.stop;
  turn.request.log_probs = fields.log_probs;
  turn.request.fairness_key = call.client;
  if (fields.seed) {
    turn.request.seed = *fields.seed + choice;
  } else if (fields.session.empty()) {
    turn.request.seed = random_number();
  }
  if (options_.turn_seconds > 0) {
    turn.request.deadline = Clock::now() + std::chrono::seconds(options_.turn_seconds);
  }
  turn.if_seq = fields.if_seq;
  const std::string* key = call.request.header("Idempotency-Key");
  // Without a session a turn leaves nothing behind that could happen twice.
  if (key != nullptr && !fields.session.empty()) turn.idempotency_key = *key;
  return turn;
}

void Api::run_completion(const Call& call, Result<CompletionRequest> parsed) {
  if (!parsed.ok()) return call.fail(field_failure(parsed.error()));
  CompletionRequest& request = *parsed;
  auto answer =
      std::make_unique<CompletionAnswer>(answer_head(request.chat ? "chatcmpl-" : "cmpl-"), request,
                                         service_.model()->config().modality);
  std::vector<SessionTurn> turns;
  for (const auto& prompt : request.prompts) {
    for (int64_t i = 0; i < request.n; ++i) {
      turns.push_back(make_turn(call, request, turns.size(), prompt));
      turns.back().after_blank_line = request.after_blank_line;
    }
  }
  const auto group =
      std::make_shared<TurnGroup>(call.exchange, std::move(answer), request.stream, turns.size());
  group->run(service_, std::move(turns));
}

void Api::completions(const Call& call) {
  const Result<Json> body = parse_body(call.request.body);
  if (!body.ok()) return call.fail(field_failure(body.error()));
  run_completion(call, parse_completion(*body, {options_.model_name, service_.model()->config(),
                                                options_.limits}));
}

void Api::chat_completions(const Call& call) {
  const Result<Json> body = parse_body(call.request.body);
  if (!body.ok()) return call.fail(field_failure(body.error()));
  run_completion(
      call, parse_chat(*body, {options_.model_name, service_.model()->config(), options_.limits}));
}

void Api::images(const Call& call) {
  const Result<Json> body = parse_body(call.request.body);
  if (!body.ok()) return call.fail(field_failure(body.error()));
  const model::ModelConfig& config = service_.model()->config();
  const auto parsed = parse_image(*body, {options_.model_name, config, options_.limits});
  if (!parsed.ok()) return call.fail(field_failure(parsed.error()));
  std::vector<SessionTurn> turns;
  for (int64_t i = 0; i < parsed->n; ++i) {
    turns.push_back(make_turn(call, *parsed, turns.size(), parsed->prompt));
  }
  auto answer = std::make_unique<ImageAnswer>(answer_head("img-"), *parsed, config);
  const auto group =
      std::make_shared<TurnGroup>(call.exchange, std::move(answer), parsed->stream, turns.size());
  group->run(service_, std::move(turns));
}

Json Api::model_json() const {
  const model::Model& model = *service_.model();
  const model::ModelConfig& config = model.config();
  Json facts;
  facts.set("modality", modality_name(config.modality));
  facts.set("vocabulary", config.vocabulary);
  facts.set("max_tokens", config.max_tokens > 0 ? Json(config.max_tokens) : Json());
  facts.set("parameters", model.parameter_count());
  facts.set("model_dim", config.model_dim);
  facts.set("mixing_layers", std::count_if(config.layers.begin(), config.layers.end(),
                                           [](const model::LayerConfig& layer) {
                                             return mixers::has_operator(*layer.mixer);
                                           }));
  facts.set("bounded_state", std::all_of(config.layers.begin(), config.layers.end(),
                                         [](const model::LayerConfig& layer) {
                                           return layer.mixer->bounded_state;
                                         }));
  facts.set("fingerprint", fmt::format("{:016x}", model.fingerprint()));
  facts.set("chat", config.modality == model::Modality::kBytes);
  if (config.modality == model::Modality::kImage) {
    facts.set("image", Json::Object{{"width", config.image_width},
                                    {"height", config.image_height},
                                    {"channels", config.image_channels}});
  }
  facts.set("durability", durability_name(service_.durability()));
  Json json;
  json.set("id", options_.model_name);
  json.set("object", "model");
  json.set("created", started_);
  json.set("owned_by", "tarn");
  json.set("tarn", std::move(facts));
  return json;
}

void Api::models(const Call& call) {
  call.answer(Json::Object{{"object", "list"}, {"data", Json::Array{model_json()}}});
}

void Api::model(const Call& call) {
  if (http::percent_decode(call.path_id) == options_.model_name) return call.answer(model_json());
  call.fail({404, "model_not_found",
             "got " + json_quote(call.path_id, 60) + ", this server has " +
                 json_quote(options_.model_name),
             "model"});
}

void Api::live(const Call& call) { call.answer(Json::Object{{"status", "ok"}}); }

void Api::ready(const Call& call) {
  const SessionService::Readiness readiness = service_.ready();
  if (readiness.ready) return call.answer(Json::Object{{"status", "ready"}});
  call.fail({503, "not_ready", readiness.reason, {}, 1});
}

void Api::metrics(const Call& call) {
  call.exchange->send(
      {.content_type = "text/plain; version=0.0.4; charset=utf-8",
       .body = metrics_text(service_, counters_, options_.model_name, options_.version)});
}

}  // namespace tarn::serve::api
