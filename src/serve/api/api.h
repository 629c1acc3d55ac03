#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/api/auth.h"
#include "serve/api/completion_answer.h"
#include "serve/api/requests.h"
#include "serve/http/counters.h"
#include "serve/http/message.h"
#include "serve/service/session_service.h"

namespace tarn::serve::api {

struct ApiOptions {
  std::string model_name = "model";  ///< as clients call it
  std::string version{};             ///< of the program
  std::vector<ApiKey> keys{};        ///< empty: everybody may do everything
  std::string cors_origin{};         ///< whose pages may call, see cors_headers; empty: none
  RequestLimits limits{};
  int64_t default_ttl_ms = 0;                   ///< of sessions that ask for none; 0: for ever
  SavePolicy default_save = SavePolicy::kTurn;  ///< of sessions that do not say
  int64_t turn_seconds = 600;                   ///< for a whole turn, waiting included; 0: no limit
};

/// The routes of the server on sessions and HTTP: docs/server.md is the contract. Threads: any.
class Api {
 public:
  /// `service` outlives the API and the requests in flight.
  Api(SessionService& service, ApiOptions options);

  /// An http::Handler. Calls of the store may make it wait, the model never.
  void handle(const http::Request& request, const std::shared_ptr<http::Exchange>& exchange);
  /// Whom a request is counted for: the name of its key, or its address.
  std::string client(const http::Request& request) const;
  /// Shows these in /metrics; they outlive the requests.
  void watch(const http::Counters& counters) { counters_ = &counters; }

 private:
  struct Call;  // one request on its way
  struct Route;
  static const Route kRoutes[];

  void run_completion(const Call& call, Result<CompletionRequest> parsed);
  SessionTurn make_turn(const Call& call, const TurnFields& fields, size_t choice,
                        std::vector<int32_t> prompt) const;
  AnswerHead answer_head(const char* prefix) const;

  void completions(const Call& call);
  void chat_completions(const Call& call);
  void images(const Call& call);
  void models(const Call& call);
  void model(const Call& call);
  void create_session(const Call& call);
  void list_sessions(const Call& call);
  void get_session(const Call& call);
  void remove_session(const Call& call);
  void fork_session(const Call& call);
  void rollback_session(const Call& call);
  void save_session(const Call& call);
  void pause_session(const Call& call);
  void resume_session(const Call& call);
  void live(const Call& call);
  void ready(const Call& call);
  void metrics(const Call& call);

  Json model_json() const;
  void fail(const Call& call, const Error& error, const std::string& created = {});
  void answer_view(const Call& call, const Result<SessionView>& view);
  static bool check_path_id(const Call& call);
  static bool check_bare(const Call& call);

  SessionService& service_;
  const ApiOptions options_;
  const ApiKeys keys_;
  const int64_t started_;  // seconds since 1970
  const std::string fingerprint_;
  std::atomic<const http::Counters*> counters_{nullptr};
};

}  // namespace tarn::serve::api
