#include "serve/http/connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "serve/http/text.h"

namespace tarn::serve::http {

namespace {

Connection::Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Connection::Clock::duration>(
      std::chrono::duration<double>(value));
}

constexpr size_t kKeptCapacity = 1024;  // of buffers, while nothing is under way
constexpr size_t kLoggedPath = 1024;

/// The client gave up before there was a status; nginx's number, known to readers of logs.
constexpr int kClientGone = 499;

/// 2026-07-01T12:00:00.123Z
std::string utc_time(std::chrono::system_clock::time_point time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  const auto whole = static_cast<std::time_t>(ms.count() / 1000);
  std::tm parts{};
  gmtime_r(&whole, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::array<char, 8> rest{};
  std::snprintf(rest.data(), rest.size(), ".%03dZ", static_cast<int>(ms.count() % 1000));
  return std::string(text.data()) + rest.data();
}

void give_back_memory(std::string* buffer) {
  if (buffer->empty() && buffer->capacity() > kKeptCapacity) *buffer = {};
}

}  // namespace

Connection::Connection(ConnectionContext& context, std::string peer, std::shared_ptr<Waker> waker,
                       Time now)
    : context_(context),
      peer_(std::move(peer)),
      waker_(std::move(waker)),
      deadline_(now + seconds(limits().header_seconds)) {}

Connection::~Connection() { close(Gone::kCut, Clock::now()); }

bool Connection::reads() const {
  switch (state_) {
    // Reading on while a request is answered tells at once when its client goes.
    case State::kAnswering: return input_.size() < static_cast<size_t>(limits().header_bytes);
    case State::kClosed: return false;
    default: return true;
  }
}

void Connection::receive(std::string_view bytes, Time now) {
  context_.counters.bytes_in += static_cast<int64_t>(bytes.size());
  if (state_ == State::kClosed) return;
  if (state_ == State::kLinger) {
    lingered_ += static_cast<int64_t>(bytes.size());
    if (lingered_ > limits().linger_bytes) state_ = State::kClosed;
    return;
  }
  input_ += bytes;
  advance(now);
}

void Connection::receive_end(Time now) { close(Gone::kClosed, now); }

void Connection::advance(Time now) {
  while (state_ == State::kIdle || state_ == State::kHeader || state_ == State::kBody) {
    if (state_ == State::kIdle) {
      // Some clients end a body with a line break that belongs to nothing (RFC 9112, 2.2).
      input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
      if (input_.empty()) break;
      begin_request(now);
    }
    size_t used = 0;
    const RequestParser::Step step = parser_->put(input_, &used);
    input_.erase(0, used);
    switch (step) {
      case RequestParser::Step::kMore:
        if (used == 0) return;
        break;
      case RequestParser::Step::kHeader:
        state_ = State::kBody;
        deadline_ = now + seconds(limits().body_seconds);
        if (parser_->expects_continue() && input_.empty()) {
          writing_ = "HTTP/1.1 100 Continue\r\n\r\n";
          writes_answer_ = false;
          progress_ = now;
        }
        break;
      case RequestParser::Step::kDone: accept_request(now); break;
      case RequestParser::Step::kFailed: refuse(parser_->failure(), now); break;
    }
  }
  give_back_memory(&input_);
}

void Connection::begin_request(Time now) {
  parser_ = std::make_unique<RequestParser>(limits());
  state_ = State::kHeader;
  begun_ = now;
  deadline_ = now + seconds(limits().header_seconds);
}

void Connection::open_exchange(AnswerForm form, Time now) {
  id_ = form.id;
  form.headers = context_.options.headers;
  exchange_ = std::make_shared<ExchangeState>(std::move(form), limits().stream_queue_bytes, waker_);
  parser_.reset();
  state_ = State::kAnswering;
  answer_bytes_ = 0;
  if (writing_.empty()) progress_ = now;
  ++context_.counters.active;
}

void Connection::accept_request(Time now) {
  Request request = std::move(parser_->request());
  request.peer = peer_;
  request.id = request_id(request.header("X-Request-Id"));
  method_ = request.head ? "HEAD" : request.method;
  path_ = request.path.substr(0, kLoggedPath);
  const bool draining = context_.draining;
  open_exchange({.http11 = parser_->http11(),
                 .keep_alive = parser_->keep_alive() && !draining,
                 .head = request.head,
                 .id = request.id},
                now);
  const auto no_room = [&](Refused reason, const char* code, const std::string& message) {
    ++context_.counters.refused[static_cast<size_t>(reason)];
    Reply reply = error_reply(503, code, message);
    const double wait = std::ceil(context_.options.retry_after_seconds);
    reply.headers.emplace_back("Retry-After", std::to_string(static_cast<int64_t>(wait)));
    exchange_->send(reply);
  };
  if (draining) {
    no_room(Refused::kDraining, "shutting_down", "the server is shutting down");
  } else if (request.path == "*") {
    exchange_->send({.status = 204,
                     .content_type = "",
                     .headers = {{"Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"}}});
  } else {
    // Who watches may sit behind the address of those who wait.
    const bool is_urgent = context_.options.urgent && context_.options.urgent(request);
    std::string key;
    if (context_.options.key && !is_urgent) key = context_.options.key(request);
    if (!key.empty() && !context_.keys.add(key, limits().requests_per_key)) {
      no_room(Refused::kKey, "too_many_requests_of_key",
              "this client has " + std::to_string(limits().requests_per_key) +
                  " requests at work, the most that one may have here; try again later");
    } else {
      key_ = std::move(key);
      if (!context_.dispatch(std::move(request), exchange_)) {
        no_room(Refused::kQueue, "queue_full", "the server is busy; try again later");
      }
    }
  }
  refill(now);
}

void Connection::refuse(const Failure& failure, Time now) {
  ++context_.counters.refused[static_cast<size_t>(failure.reason)];
  const Request& request = parser_->request();
  method_ = request.head ? "HEAD" : request.method;
  path_ = request.path.substr(0, kLoggedPath);
  unread_ = true;
  input_ = {};
  const Reply reply = error_reply(failure.status, failure.code, failure.message);
  open_exchange({.http11 = parser_->http11(),
                 .keep_alive = false,
                 .head = request.head,
                 .id = request_id(request.header("X-Request-Id"))},
                now);
  exchange_->send(reply);
  refill(now);
}

void Connection::turn_away(Refused reason, Time now) {
  begin_request(now);
  ++context_.counters.refused[static_cast<size_t>(reason)];
  unread_ = true;
  open_exchange({.keep_alive = false, .id = request_id(nullptr)}, now);
  const std::string message =
      reason == Refused::kAddress
          ? "this address has " + std::to_string(limits().connections_per_address) +
                " connections, the most that one may have here; try again later"
          : "all " + std::to_string(limits().connections) +
                " connections of this server are in use; try again later";
  Reply reply = error_reply(503, "too_many_connections", message);
  const double wait = std::ceil(context_.options.retry_after_seconds);
  reply.headers.emplace_back("Retry-After", std::to_string(static_cast<int64_t>(wait)));
  exchange_->send(reply);
  refill(now);
}

void Connection::pump(Time now) { refill(now); }

void Connection::refill(Time now) {
  if (!exchange_) return;
  if (exchange_->overflowed()) return close(Gone::kOverflow, now);
  if (!writing_.empty()) return;
  const ExchangeState::Progress progress = exchange_->take(&writing_);
  if (!writing_.empty()) {
    writes_answer_ = true;
    progress_ = now;
    if (!counted_stream_ && exchange_->streams()) {
      counted_stream_ = true;
      ++context_.counters.streams;
    }
  } else if (progress.broken) {
    close(Gone::kCut, now);
  } else if (progress.done) {
    end_exchange(progress.keep_alive, now);
  }
}

void Connection::wrote(size_t bytes, Time now) {
  context_.counters.bytes_out += static_cast<int64_t>(bytes);
  progress_ = now;
  written_ += bytes;
  if (writes_answer_ && exchange_) {
    exchange_->sent(bytes);
    answer_bytes_ += static_cast<int64_t>(bytes);
  }
  if (written_ < writing_.size()) return;
  writing_.clear();
  written_ = 0;
  give_back_memory(&writing_);
  refill(now);
}

void Connection::end_exchange(bool keep_alive, Time now) {
  log_exchange(now, nullptr);
  if (!keep_alive || context_.draining) {
    // Closing with bytes unread resets the connection, which may lose the answer on its way.
    state_ = unread_ || !input_.empty() ? State::kLinger : State::kClosed;
    deadline_ = now + seconds(limits().linger_seconds);
    input_ = {};
    return;
  }
  state_ = State::kIdle;
  deadline_ = now + seconds(limits().keep_alive_seconds);
  advance(now);
}

void Connection::close(Gone reason, Time now) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  writing_ = {};
  written_ = 0;
  if (!exchange_) return;
  ++context_.counters.gone[static_cast<size_t>(reason)];
  const std::shared_ptr<ExchangeState> exchange = exchange_;
  log_exchange(now, gone_name(reason));
  exchange->lose();
}

void Connection::log_exchange(Time now, const char* gone) {
  const int status = exchange_->status() == 0 ? kClientGone : exchange_->status();
  exchange_.reset();
  --context_.counters.active;
  ++context_.counters.by_status[static_cast<size_t>(status)];
  if (std::exchange(counted_stream_, false)) --context_.counters.streams;
  const std::string key = std::exchange(key_, {});
  if (!key.empty()) context_.keys.remove(key);
  if (!context_.options.access_log) return;
  Json line;
  line.set("event", "request");
  line.set("time", utc_time(std::chrono::system_clock::now()));
  line.set("method", std::exchange(method_, {}));
  line.set("path", std::exchange(path_, {}));
  line.set("status", status);
  line.set("seconds", std::chrono::duration<double>(now - begun_).count());
  line.set("bytes", answer_bytes_);
  line.set("id", id_);
  line.set("peer", peer_);
  constexpr std::string_view kNamed = "key ";
  if (key.starts_with(kNamed)) line.set("key", key.substr(kNamed.size()));
  if (gone != nullptr) line.set("gone", gone);
  log_message(LogLevel::kInfo, line.dump());
}

void Connection::stop(Time now) {
  if (state_ == State::kIdle) return close(Gone::kCut, now);
  if (exchange_) exchange_->forbid_keep_alive();
}

void Connection::tick(Time now) {
  if (!output().empty()) {
    if (now - progress_ >= seconds(limits().write_stall_seconds)) close(Gone::kStalled, now);
    return;
  }
  if (state_ == State::kAnswering) {
    const double ping = context_.options.ping_seconds;
    if (ping > 0 && now - progress_ >= seconds(ping)) {
      exchange_->ping();
      refill(now);
    }
    return;
  }
  if (now < deadline_) return;
  switch (state_) {
    case State::kHeader:
      return refuse({408, Refused::kHeaderTime, "request_timeout",
                     "the request's header did not come in time"},
                    now);
    case State::kBody:
      return refuse(
          {408, Refused::kBodyTime, "request_timeout", "the request's body did not come in time"},
          now);
    default: return close(Gone::kClosed, now);
  }
}

}  // namespace tarn::serve::http
