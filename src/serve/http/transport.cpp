#include "serve/http/transport.h"

#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"

namespace tarn::serve::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = Connection::Clock;

namespace {

/// Connections that are told that there is no room, at one time; more are closed without a word.
constexpr int64_t kMaxTurnedAway = 64;
constexpr std::chrono::milliseconds kAcceptPause(100);

class Session;

/// One thread, its sessions, and what they share. Only that thread touches it, but for `io`.
struct Loop {
  explicit Loop(ConnectionContext& shared_context) : context(shared_context) {}

  void start();
  void end();  // has run() return when the sessions are closed
  void arm_tick();
  template <class Function>
  void each(Function function);

  ConnectionContext& context;
  Tally* addresses = nullptr;
  std::atomic<int64_t>* turned_away = nullptr;
  asio::io_context io{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{io.get_executor()};
  asio::steady_timer timer{io};
  Clock::duration tick{};
  bool ending = false;
  std::vector<std::shared_ptr<Session>> sessions;
  std::array<char, size_t{16} << 10> scratch{};
  std::thread thread;
};

class SessionWaker final : public Waker {
 public:
  void wake() override;
  std::weak_ptr<Session> session;
};

/// A connection and its socket. Lives in Loop::sessions until it is closed; what the loop is to
/// call later holds it too, but posts from other threads do not: they may be left over.
class Session final : public std::enable_shared_from_this<Session> {
 public:
  Session(std::shared_ptr<Loop> loop, tcp::socket socket, std::string peer, std::string address,
          const std::shared_ptr<SessionWaker>& waker)
      : loop_(std::move(loop)),
        socket_(std::move(socket)),
        address_(std::move(address)),
        connection_(loop_->context, std::move(peer), waker, Clock::now()) {}

  /// `refused` is why it is only told that there is no room.
  void start(std::optional<Refused> refused) {
    place_ = loop_->sessions.size();
    loop_->sessions.push_back(shared_from_this());
    turned_away_ = refused.has_value();
    run([&](Clock::time_point now) {
      if (loop_->ending) connection_.close(Gone::kCut, now);
      if (loop_->context.draining) connection_.stop(now);
      if (refused) connection_.turn_away(*refused, "too many connections; try again later", now);
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
    if (turned_away_) --*loop_->turned_away;
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
  const std::string address_;  // counted in Loop::addresses; "": not counted
  Connection connection_;
  size_t place_ = 0;
  bool reading_ = false, sending_ = false;  // the loop waits for it
  bool half_closed_ = false, turned_away_ = false;
};

void SessionWaker::wake() {
  if (const auto locked = session.lock()) locked->pump_later();
}

template <class Function>
void Loop::each(Function function) {
  // Backwards: a session that closes is replaced by the last one.
  for (size_t i = sessions.size(); i-- > 0;) {
    if (i >= sessions.size()) continue;
    const std::shared_ptr<Session> session = sessions[i];
    function(*session);
  }
}

void Loop::arm_tick() {
  timer.expires_after(tick);
  timer.async_wait([this](error_code error) {
    if (error || ending) return;
    each([](Session& session) { session.tick(); });
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
  each([](Session& session) { session.cut(); });
}

/// Short enough that no time limit is passed by more than a quarter, nor by 250 ms.
Clock::duration tick_of(const ServerOptions& options) {
  const Limits& limits = options.limits;
  double shortest = std::min({limits.header_seconds, limits.body_seconds, limits.keep_alive_seconds,
                              limits.write_stall_seconds, limits.linger_seconds, 1.0});
  if (options.ping_seconds > 0) shortest = std::min(shortest, options.ping_seconds);
  return std::chrono::milliseconds(std::max(5, static_cast<int>(250 * shortest)));
}

/// What connections_per_address counts by: one client may own a whole IPv6 /64.
std::string counted_address(const asio::ip::address& address) {
  if (!address.is_v6()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), uint8_t{0});
  return asio::ip::address_v6(bytes).to_string();
}

}  // namespace

struct Transport::Impl {
  explicit Impl(ConnectionContext& shared_context) : context(shared_context) {
    for (int i = 0; i < context.options.io_threads; ++i) {
      loops.push_back(std::make_shared<Loop>(context));
      loops.back()->addresses = &addresses;
      loops.back()->turned_away = &turned_away;
      loops.back()->tick = tick_of(context.options);
    }
    acceptor.emplace(loops[0]->io);
    pause.emplace(loops[0]->io);
  }

  Status listen();
  void accept();
  void take(tcp::socket socket, const std::shared_ptr<Loop>& loop);
  void stop_listening() {
    error_code ignored;
    acceptor->close(ignored);
    pause->cancel();
  }

  ConnectionContext& context;
  Tally addresses;
  std::atomic<int64_t> turned_away{0};
  std::vector<std::shared_ptr<Loop>> loops;
  std::optional<tcp::acceptor> acceptor;  // these two belong to the first loop
  std::optional<asio::steady_timer> pause;
  size_t next_loop = 0;
  int port = 0;
};

Status Transport::Impl::listen() {
  const ServerOptions& options = context.options;
  error_code error;
  const asio::ip::address address = asio::ip::make_address(options.address, error);
  if (error) {
    return invalid_argument(
        "wanted a numeric IPv4 or IPv6 address such as 127.0.0.1 or ::1, got \"" + options.address +
            "\"",
        "address");
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  if (!error) acceptor->open(endpoint.protocol(), error);
  if (!error) acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && address.is_v6()) acceptor->set_option(asio::ip::v6_only(false), error);
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(asio::socket_base::max_listen_connections, error);
  const std::string where = options.address + " port " + std::to_string(options.port);
  if (error == asio::error::address_in_use) {
    return Error{ErrorCode::kConflict, "the address is in use, probably by another server", where};
  }
  if (error) return Error{ErrorCode::kIo, "cannot listen: " + error.message(), where};
  port = acceptor->local_endpoint(error).port();
  return {};
}

void Transport::Impl::accept() {
  const std::shared_ptr<Loop>& loop = loops[next_loop++ % loops.size()];
  acceptor->async_accept(loop->io, [this, loop = loop.get()](error_code error, tcp::socket socket) {
    if (!acceptor->is_open()) return;
    if (error == asio::error::no_descriptors || error == asio::error::no_memory ||
        error == error_code(ENFILE, boost::system::system_category())) {
      // The client waits in the kernel's queue; asking again at once would spin.
      log_message(LogLevel::kWarning, "http: cannot take a connection: " + error.message());
      pause->expires_after(kAcceptPause);
      return pause->async_wait([this](error_code cancelled) {
        if (!cancelled && acceptor->is_open()) accept();
      });
    }
    if (!error) {
      try {
        const auto is_it = [loop](const auto& other) { return other.get() == loop; };
        take(std::move(socket), *std::find_if(loops.begin(), loops.end(), is_it));
      } catch (const std::exception& failure) {
        log_message(LogLevel::kError, std::string("http: lost a connection: ") + failure.what());
      }
    }
    accept();
  });
}

void Transport::Impl::take(tcp::socket socket, const std::shared_ptr<Loop>& loop) {
  const Limits& limits = context.options.limits;
  Counters& counters = context.counters;
  error_code error;
  asio::ip::address address = socket.remote_endpoint(error).address();
  if (!error) socket.non_blocking(true, error);
  if (error) return;  // it has gone already
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  }
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  // A client that lost power sends no more: what it does not acknowledge ends the connection.
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto patience = static_cast<unsigned>(1000 * limits.write_stall_seconds);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);

  ++counters.accepted;
  std::optional<Refused> refused;
  std::string counted;
  if (counters.open - turned_away >= limits.connections) {
    refused = Refused::kConnections;
  } else if (limits.connections_per_address > 0) {
    counted = counted_address(address);
    if (!addresses.add(counted, limits.connections_per_address)) {
      refused = Refused::kAddress;
      counted.clear();
    }
  }
  if (refused) {
    if (turned_away >= kMaxTurnedAway) {
      ++counters.refused[static_cast<size_t>(*refused)];
      return;
    }
  }
  const auto waker = std::make_shared<SessionWaker>();
  const auto session = std::make_shared<Session>(loop, std::move(socket), address.to_string(),
                                                 std::move(counted), waker);
  waker->session = session;
  if (refused) ++turned_away;
  ++counters.open;
  asio::post(loop->io, [session, refused] { session->start(refused); });
}

Transport::Transport(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Transport>> Transport::start(ConnectionContext& context) {
  try {
    auto impl = std::make_unique<Impl>(context);
    TARN_RETURN_IF_ERROR(impl->listen());
    impl->accept();
    std::unique_ptr<Transport> transport(new Transport(std::move(impl)));
    for (const auto& loop : transport->impl_->loops) loop->start();
    return transport;
  } catch (const std::exception& error) {
    return Error{ErrorCode::kResource, std::string("cannot start: ") + error.what(), "http"};
  }
}

Transport::~Transport() {
  if (impl_->loops[0]->thread.joinable()) {
    // First, and alone: nothing may be handed to a thread that has ended.
    std::promise<void> done;
    asio::post(impl_->loops[0]->io, [this, &done] {
      impl_->stop_listening();
      done.set_value();
    });
    done.get_future().wait();
  }
  for (const auto& loop : impl_->loops) {
    asio::post(loop->io, [raw = loop.get()] { raw->end(); });
  }
  for (const auto& loop : impl_->loops) {
    if (loop->thread.joinable()) loop->thread.join();
  }
}

int Transport::port() const { return impl_->port; }

void Transport::stop_accepting() {
  std::vector<std::promise<void>> done(impl_->loops.size());
  for (size_t i = 0; i < done.size(); ++i) {
    Loop* loop = impl_->loops[i].get();
    asio::post(loop->io, [this, loop, i, &done] {
      if (i == 0) impl_->stop_listening();
      loop->each([](Session& session) { session.stop(); });
      done[i].set_value();
    });
  }
  for (auto& promise : done) promise.get_future().wait();
}

void Transport::cut() {
  for (const auto& loop : impl_->loops) {
    asio::post(loop->io,
               [raw = loop.get()] { raw->each([](Session& session) { session.cut(); }); });
  }
}

}  // namespace tarn::serve::http
