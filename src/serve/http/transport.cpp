#include "serve/http/transport.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/http/loop.h"

namespace tarn::serve::http {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = Connection::Clock;

namespace {

/// Connections that are told that there is no room, at one time; more are closed without a word.
constexpr int64_t kMaxTurnedAway = 64;
constexpr std::chrono::milliseconds kAcceptPause(100);

/// Short enough that no time limit is passed by more than a quarter, nor by 250 ms.
Clock::duration tick_of(const ServerOptions& options) {
  const Limits& limits = options.limits;
  double shortest = std::min({limits.header_seconds, limits.body_seconds, limits.keep_alive_seconds,
                              limits.write_stall_seconds, limits.linger_seconds, 1.0});
  if (options.ping_seconds > 0) shortest = std::min(shortest, options.ping_seconds);
  return std::chrono::milliseconds(std::max(5, static_cast<int>(250 * shortest)));
}

/// Runs `function` on the loop's thread; the future tells when it is done.
template <class Function>
std::future<void> call_on(Loop& loop, Function function) {
  auto done = std::make_shared<std::promise<void>>();
  asio::post(loop.io, [function, done] {
    function();
    done->set_value();
  });
  return done->get_future();
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
  if (refused) ++turned_away;
  ++counters.open;
  loop->adopt({std::move(socket), address.to_string(), std::move(counted), refused});
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
    call_on(*impl_->loops[0], [this] { impl_->stop_listening(); }).wait();
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
  std::vector<std::future<void>> done;
  for (const auto& loop : impl_->loops) {
    done.push_back(call_on(*loop, [this, raw = loop.get(), first = done.empty()] {
      if (first) impl_->stop_listening();
      raw->stop_sessions();
    }));
  }
  for (auto& future : done) future.wait();
}

void Transport::cut() {
  for (const auto& loop : impl_->loops) {
    asio::post(loop->io, [raw = loop.get()] { raw->cut_sessions(); });
  }
}

}  // namespace tarn::serve::http
