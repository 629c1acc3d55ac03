#pragma once

#include <memory>

#include "base/result.h"
#include "serve/http/connection.h"

namespace tarn::serve::http {

/// The sockets of a server and the threads that serve them. Each connection belongs to one thread,
/// which never waits for anything but the sockets. Owner of Boost.Asio.
class Transport {
 public:
  /// Listens at context.options' address; see Server::start for errors. `context` must outlive it.
  static Result<std::unique_ptr<Transport>> start(ConnectionContext& context);
  /// Cuts every connection and ends the threads. Not on one of these.
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int port() const;
  /// Closes the listening socket and has every connection stop; returns when that is done. Not on
  /// an I/O thread.
  void stop_accepting();
  /// Cuts every connection soon.
  void cut();

 private:
  struct Impl;
  explicit Transport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarn::serve::http
