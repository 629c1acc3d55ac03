#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/api/errors.h"
#include "serve/http/message.h"
#include "serve/service/session_service.h"

namespace tarn::serve::api {

/// What an endpoint makes of the tokens of a request's turns. Called under a lock, by whichever thread
/// tells tokens: must be quick. `out` takes events of a stream; ignored without one.
class Answer {
 public:
  Answer() = default;
  virtual ~Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  virtual void begin(std::string* /*out*/) {}
  virtual void token(size_t choice, const TokenEvent& event, std::string* out) = 0;
  /// The turn ended with kStop or kLength.
  virtual void choice_end(size_t choice, const TurnResult& result, std::string* out) = 0;
  /// All have: the end of the stream, or the body of the whole answer.
  virtual void stream_end(std::string* out) = 0;
  virtual Json body() = 0;
};

/// "data: JSON\n\n".
void append_event(const Json& json, std::string* out);

/// The turns of one request and its answer on their way to the client. All are admitted before
/// anything is answered; the first that fails ends all. A client that goes cancels them.
class TurnGroup : public std::enable_shared_from_this<TurnGroup> {
 public:
  TurnGroup(std::shared_ptr<http::Exchange> exchange, std::unique_ptr<Answer> answer, bool stream,
            size_t turns);

  /// Submits the turns, whose callbacks must be empty, and answers now or when they end.
  void run(SessionService& service, std::vector<SessionTurn> turns);

 private:
  std::optional<Failure> submit(SessionService& service, std::vector<SessionTurn> turns);
  void start();
  void on_token(size_t choice, const TokenEvent& event);
  void on_end(size_t choice, const TurnResult& result);
  /// Ends every turn at its next token; without the lock.
  void cancel();
  /// Writes what waits, with the lock; false when nobody reads.
  bool flush();
  void finish_if_done();

  const std::shared_ptr<http::Exchange> exchange_;
  const std::unique_ptr<Answer> answer_;
  const bool stream_;

  std::mutex handles_mutex_;  // apart: callbacks about lost clients take it while mutex_ is held
  std::vector<TurnHandle> handles_;
  bool cancelled_ = false;

  std::mutex mutex_;
  bool started_ = false;    // all turns are admitted
  bool streaming_ = false;  // 200 has been answered
  bool lost_ = false;
  size_t running_;
  std::optional<Failure> failure_;
  std::string pending_;  // events that are not written yet
};

}  // namespace tarn::serve::api
