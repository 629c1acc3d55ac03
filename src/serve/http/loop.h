#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "serve/http/connection.h"

namespace tarn::serve::http {

class Session;

/// A connection that was just taken.
struct Arrival {
  boost::asio::ip::tcp::socket socket;  ///< of the loop's io, not blocking
  std::string peer;
  std::string address;             ///< counted in Loop::addresses; "": not counted
  std::optional<Refused> refused;  ///< why it is only told that there is no room
};

/// One I/O thread, its sessions, and what they share. Only that thread touches it, but for `io` and
/// adopt().
struct Loop : std::enable_shared_from_this<Loop> {
  explicit Loop(ConnectionContext& shared_context) : context(shared_context) {}

  void start();
  void adopt(Arrival arrival);
  void stop_sessions();
  void cut_sessions();
  void end();  ///< the thread ends when the sessions are closed
  void arm_tick();

  ConnectionContext& context;
  Tally* addresses = nullptr;
  std::atomic<int64_t>* turned_away = nullptr;
  boost::asio::io_context io{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work{
      io.get_executor()};
  boost::asio::steady_timer timer{io};
  Connection::Clock::duration tick{};
  bool ending = false;
  std::vector<std::shared_ptr<Session>> sessions;
  std::array<char, size_t{16} << 10> scratch{};
  std::thread thread;
};

}  // namespace tarn::serve::http
