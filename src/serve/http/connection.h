#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/counters.h"
#include "serve/http/exchange.h"
#include "serve/http/message.h"
#include "serve/http/parser.h"
#include "serve/http/server.h"
#include "serve/http/tally.h"

namespace tarn::serve::http {

/// What the connections of one server share.
struct ConnectionContext {
  using Dispatch = std::function<bool(Request, std::shared_ptr<ExchangeState>)>;

  ServerOptions options;
  Counters counters{};
  Tally keys{};
  std::atomic<bool> draining{false};
  Dispatch dispatch{};  ///< has a handler called elsewhere; false: there is no room
};

/// One connection without its socket: bytes and the time come in, bytes come out. It reads
/// requests, holds them to the limits, and orders and ends their answers. Whoever has the socket
/// calls it on one thread and afterwards does what output(), reads(), lingers() and closed() say.
class Connection {
 public:
  using Clock = Server::Clock;
  using Time = Clock::time_point;

  Connection(ConnectionContext& context, std::string peer, std::shared_ptr<Waker> waker, Time now);
  /// Ends what is under way as cut.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void receive(std::string_view bytes, Time now);
  /// The client has closed its side, or the network failed.
  void receive_end(Time now);
  /// The waker was called.
  void pump(Time now);
  void tick(Time now);
  /// Answers at once that there is no room, and closes.
  void turn_away(Refused reason, Time now);
  /// The server is draining: closes when idle, else after the answer.
  void stop(Time now);
  void close(Gone reason, Time now);

  /// To be sent next; stays valid until wrote().
  std::string_view output() const { return std::string_view(writing_).substr(written_); }
  void wrote(size_t bytes, Time now);

  bool reads() const;                                        ///< wants more bytes
  bool lingers() const { return state_ == State::kLinger; }  ///< will send no more
  bool closed() const { return state_ == State::kClosed; }

 private:
  enum class State {
    kIdle,    // between requests
    kHeader,  // a request has begun
    kBody,
    kAnswering,  // with an exchange
    kLinger,     // has refused something and drops what still comes
    kClosed,
  };

  const Limits& limits() const { return context_.options.limits; }
  void advance(Time now);
  void begin_request(Time now);
  void accept_request(Time now);
  void refuse(const Failure& failure, Time now);
  void open_exchange(AnswerForm form, Time now);
  void refill(Time now);
  void end_exchange(bool keep_alive, Time now);
  void log_exchange(Time now, const char* gone);

  ConnectionContext& context_;
  const std::string peer_;
  const std::shared_ptr<Waker> waker_;
  State state_ = State::kIdle;
  Time deadline_;  // of the state

  std::string input_;  // not yet parsed
  std::unique_ptr<RequestParser> parser_;
  Time begun_{};                          // of the request
  std::string method_, path_, id_, key_;  // of the exchange
  std::shared_ptr<ExchangeState> exchange_;
  bool counted_stream_ = false;
  bool unread_ = false;  // the client may still be sending what nobody reads
  int64_t lingered_ = 0;

  std::string writing_;
  size_t written_ = 0;
  bool writes_answer_ = false;  // else an interim response
  int64_t answer_bytes_ = 0;
  Time progress_{};  // when the kernel last took something, or writing began
};

}  // namespace tarn::serve::http
