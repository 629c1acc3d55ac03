#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "serve/http/counters.h"
#include "serve/http/message.h"

namespace tarn::serve::http {

/// What one client, and all together, may take. Passing a limit is a 4xx or 503 with an error body;
/// where the rest of the request would still have to be read, the connection closes after it.
struct Limits {
  int64_t header_bytes = int64_t{16} << 10;  ///< request line and header (431)
  int64_t header_fields = 100;               ///< trailers included (431)
  int64_t body_bytes = int64_t{2} << 20;     ///< chunked or not (413)
  double header_seconds = 10;                ///< for a request's header, from its first byte (408)
  double body_seconds = 30;                  ///< for its body (408)
  double write_stall_seconds = 30;           ///< without the client reading anything: gone
  double keep_alive_seconds = 60;            ///< between requests: closed
  int64_t stream_queue_bytes = int64_t{256} << 10;  ///< written and not sent: more is gone
  int64_t connections = 10'000;                     ///< (503)
  int64_t connections_per_address = 64;             ///< 0: no such limit (503)
  int64_t requests_per_key =
      64;  ///< at work at once, see ServerOptions::key; 0: no such limit (503)
  int64_t queued_requests = 1024;  ///< that wait for a worker (503)
  double linger_seconds = 2;       ///< to read on after a refusal, so that the client gets it
  int64_t linger_bytes = int64_t{256} << 10;
};

struct ServerOptions {
  std::string address = "127.0.0.1";  ///< numeric, IPv4 or IPv6; "::" also takes IPv4
  int port = 0;                       ///< 0: any free one
  int io_threads = 1;
  int workers = 4;  ///< threads that run the handler
  Limits limits = {};
  double ping_seconds = 15;        ///< of silence before an event stream gets a ping; 0: none
  double retry_after_seconds = 1;  ///< told with a 503
  /// What requests_per_key counts by, e.g. an API key; "" is not counted. Runs on an I/O thread.
  std::function<std::string(const Request&)> key = {};
  /// Requests that a thread of their own answers, so that they do not wait for handlers that wait,
  /// e.g. whether the server lives; not counted by requests_per_key. None when empty. Runs on an I/O
  /// thread.
  std::function<bool(const Request&)> urgent = {};
  Headers headers = {};    ///< of every answer, refusals included
  bool access_log = true;  ///< one JSON line for each request to the log sink, at kInfo
};

/// An HTTP/1.1 server: few I/O threads that never wait, and workers that run the handler.
/// Connections are kept alive, and pipelined requests answered in order. A request is handed over
/// when all of it has come. `OPTIONS *` is answered here; every other method but CONNECT is the
/// handler's. Threads: any.
class Server {
 public:
  using Clock = std::chrono::steady_clock;

  /// Listens from here on. Errors: options out of range, an address that is none
  /// (kInvalidArgument); an address in use (kConflict) or otherwise refused (kIo).
  static Result<std::unique_ptr<Server>> start(ServerOptions options, Handler handler);
  /// Cuts what is left, and waits for handlers that run.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;

  /// Takes no more connections and requests; those at work go on. Idle connections are closed, and
  /// a request that still comes on another one gets a 503.
  void stop_accepting();

  struct Drained {
    int64_t answered = 0;  ///< requests that were at work and came to their end
    int64_t cut = 0;       ///< requests that were still at work at the deadline
  };
  /// stop_accepting(), then waits for what is at work, and cuts off what is left at the deadline
  /// (Exchange::on_gone). Returns when no connection is left.
  Drained drain(Clock::time_point deadline);

  const Counters& counters() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarn::serve::http
