#include "serve/http/loop.h"

#include <poll.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace tarn::serve::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = Connection::Clock;

namespace {

class SessionWaker final : public Waker {
 public:
  void wake() override;
  std::weak_ptr<Session> session;
};

}  // namespace

/// A connection and its socket. Lives in Loop::sessions until it is closed; what the loop is to
/// call later holds it too, but posts from other threads do not: they may be left over.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<Loop> loop, Arrival arrival, std::shared_ptr<Waker> waker)
      : loop_(std::move(loop)),
        socket_(std::move(arrival.socket)),
        address_(std::move(arrival.address)),
        refused_(arrival.refused),
        connection_(loop_->context, std::move(arrival.peer), std::move(waker), Clock::now()) {}

  void start() {
    place_ = loop_->sessions.size();
    loop_->sessions.push_back(shared_from_this());
    run([&](Clock::time_point now) {
      if (loop_->ending) connection_.close(Gone::kCut, now);
      if (loop_->context.draining) connection_.stop(now);
      if (refused_) connection_.turn_away(*refused_, now);
    });
  }

  /// Calls `function(now)`, then does with the socket what the connection wants.
  template <class Function>
  void run(Function function) {
    try {
      function(Clock::now());
      settle();
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("unknown exception");
    }
  }

  void pump_later() {
    asio::post(loop_->io, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->run([&](Clock::time_point now) { self->connection_.pump(now); });
      }
    });
  }

  void tick() {
    run([this](Clock::time_point now) {
      if (!reading_ && hung_up()) connection_.receive_end(now);
      connection_.tick(now);
    });
  }
  void stop() {
    run([this](Clock::time_point now) { connection_.stop(now); });
  }
  void cut() {
    run([this](Clock::time_point now) { connection_.close(Gone::kCut, now); });
  }

 private:
  void settle() {
    if (!socket_.is_open()) return;
    const Clock::time_point now = Clock::now();
    send(now);
    if (connection_.closed()) return shut();
    error_code ignored;
    if (connection_.lingers() && !std::exchange(half_closed_, true)) {
      socket_.shutdown(tcp::socket::shutdown_send, ignored);
    }
    if (connection_.reads() && !std::exchange(reading_, true)) {
      socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
        self->reading_ = false;
        if (!error) self->run([&](Clock::time_point later) { self->receive(later); });
      });
    }
  }

  void send(Clock::time_point now) {
    while (!sending_ && !connection_.output().empty()) {
      const std::string_view output = connection_.output();
      error_code error;
      const size_t sent = socket_.write_some(asio::buffer(output.data(), output.size()), error);
      if (error == asio::error::would_block) {
        sending_ = true;
        socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](error_code failed) {
          self->sending_ = false;
          if (!failed) self->run([](Clock::time_point) {});
        });
      } else if (error) {
        connection_.close(Gone::kClosed, now);
      } else {
        connection_.wrote(sent, now);
      }
    }
  }

  void receive(Clock::time_point now) {
    if (!socket_.is_open()) return;
    error_code error;
    auto& scratch = loop_->scratch;
    const size_t size = socket_.read_some(asio::buffer(scratch), error);
    if (error == asio::error::would_block) return;
    if (error) return connection_.receive_end(now);
    connection_.receive({scratch.data(), size}, now);
  }

  /// While nothing is read (its buffer is full), the kernel still knows that the client has gone.
  bool hung_up() {
    if (!socket_.is_open()) return false;
    pollfd poll{socket_.native_handle(), POLLRDHUP, 0};
    return ::poll(&poll, 1, 0) == 1;
  }

  void shut() {
    error_code ignored;
    socket_.close(ignored);
    // The last session takes its place.
    auto& sessions = loop_->sessions;
    const auto self = shared_from_this();
    sessions.back()->place_ = place_;
    std::swap(sessions[place_], sessions.back());
    sessions.pop_back();
    if (!address_.empty()) loop_->addresses->remove(address_);
    if (refused_) --*loop_->turned_away;
    --loop_->context.counters.open;
  }

  void fail(const char* what) noexcept {
    try {
      log_message(LogLevel::kError, std::string("http: a connection was closed: ") + what);
      connection_.close(Gone::kCut, Clock::now());
    } catch (...) {  // what on_gone threw: it has been called, and the rest is done
    }
    if (socket_.is_open()) shut();
  }

  const std::shared_ptr<Loop> loop_;
  tcp::socket socket_;
  const std::string address_;
  const std::optional<Refused> refused_;
  Connection connection_;
  size_t place_ = 0;
  bool reading_ = false, sending_ = false;  // the loop waits for it
  bool half_closed_ = false;
};

void SessionWaker::wake() {
  if (const auto locked = session.lock()) locked->pump_later();
}

namespace {

template <class Function>
void each(const std::vector<std::shared_ptr<Session>>& sessions, Function function) {
  // Backwards: a session that closes is replaced by the last one.
  for (size_t i = sessions.size(); i-- > 0;) {
    if (i >= sessions.size()) continue;
    const std::shared_ptr<Session> session = sessions[i];
    function(*session);
  }
}

}  // namespace

void Loop::adopt(Arrival arrival) {
  const auto waker = std::make_shared<SessionWaker>();
  const auto session = std::make_shared<Session>(shared_from_this(), std::move(arrival), waker);
  waker->session = session;
  asio::post(io, [session] { session->start(); });
}

void Loop::stop_sessions() {
  each(sessions, [](Session& session) { session.stop(); });
}

void Loop::cut_sessions() {
  each(sessions, [](Session& session) { session.cut(); });
}

void Loop::arm_tick() {
  timer.expires_after(tick);
  timer.async_wait([this](error_code error) {
    if (error || ending) return;
    each(sessions, [](Session& session) { session.tick(); });
    arm_tick();
  });
}

void Loop::start() {
  arm_tick();
  thread = std::thread([this] {
    while (true) {
      try {
        io.run();
        return;
      } catch (const std::exception& error) {
        log_message(LogLevel::kError,
                    std::string("http: an I/O thread goes on after: ") + error.what());
      }
    }
  });
}

void Loop::end() {
  ending = true;
  timer.cancel();
  work.reset();
  cut_sessions();
}

}  // namespace tarn::serve::http
