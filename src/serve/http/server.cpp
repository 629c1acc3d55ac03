#include "serve/http/server.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "serve/http/connection.h"
#include "serve/http/transport.h"
#include "serve/http/workers.h"

namespace tarn::serve::http {

namespace {

Status out_of_range(const char* name, double got, double min, double max) {
  if (got >= min && got <= max) return {};
  return invalid_argument(
      "wanted " + Json(min).dump() + " to " + Json(max).dump() + ", got " + Json(got).dump(), name);
}

Status validate(const ServerOptions& options) {
  struct Range {
    const char* name;
    double got, min, max;
  };
  constexpr double kMost = 1e9, kMostBytes = 1e12;
  const Limits& limits = options.limits;
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  for (const Range& range : {
           Range{"port", number(options.port), 0, 65535},
           {"io_threads", number(options.io_threads), 1, 64},
           {"workers", number(options.workers), 1, 4096},
           {"ping_seconds", options.ping_seconds, 0, kMost},
           {"retry_after_seconds", options.retry_after_seconds, 0, kMost},
           {"header_bytes", number(limits.header_bytes), 64, 1 << 24},
           {"header_fields", number(limits.header_fields), 1, 1 << 20},
           {"body_bytes", number(limits.body_bytes), 0, kMostBytes},
           {"header_seconds", limits.header_seconds, 0.001, kMost},
           {"body_seconds", limits.body_seconds, 0.001, kMost},
           {"write_stall_seconds", limits.write_stall_seconds, 0.001, 1e6},
           {"keep_alive_seconds", limits.keep_alive_seconds, 0.001, kMost},
           {"stream_queue_bytes", number(limits.stream_queue_bytes), 1, kMostBytes},
           {"connections", number(limits.connections), 1, kMost},
           {"connections_per_address", number(limits.connections_per_address), 0, kMost},
           {"requests_per_key", number(limits.requests_per_key), 0, kMost},
           {"queued_requests", number(limits.queued_requests), 0, kMost},
           {"linger_seconds", limits.linger_seconds, 0.001, kMost},
           {"linger_bytes", number(limits.linger_bytes), 0, kMostBytes},
       }) {
    TARN_RETURN_IF_ERROR(out_of_range(range.name, range.got, range.min, range.max));
  }
  return {};
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions options, Handler wanted_handler)
      : context{.options = std::move(options)},
        handler(std::move(wanted_handler)),
        workers(context.options.workers, context.options.limits.queued_requests),
        urgent_worker(context.options.urgent ? 1 : 0, context.options.limits.queued_requests) {
    context.dispatch = [this](Request request, std::shared_ptr<ExchangeState> state) {
      const bool is_urgent = context.options.urgent && context.options.urgent(request);
      // Held from its start only: one that finds no room has not been abandoned by a handler.
      return (is_urgent ? urgent_worker : workers)
          .submit([this, request = std::make_shared<const Request>(std::move(request)),
                   state = std::move(state)] {
            if (!state->gone()) handle(*request, make_exchange(state));
          });
    };
  }

  void handle(const Request& request, std::shared_ptr<Exchange> exchange) noexcept {
    const char* what = "an unknown exception";
    try {
      return handler(request, std::move(exchange));
    } catch (const std::exception& error) {
      log_message(LogLevel::kError, "http: a handler failed: " + json_quote(error.what()));
      return;
    } catch (...) {
    }
    log_message(LogLevel::kError, std::string("http: a handler failed: ") + what);
  }

  ConnectionContext context;
  const Handler handler;
  Workers workers, urgent_worker;  // end after the transport: nobody submits any more
  std::unique_ptr<Transport> transport;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Handler handler) {
  TARN_RETURN_IF_ERROR(validate(options));
  if (!handler) return invalid_argument("wanted a function, got none", "handler");
  try {
    auto impl = std::make_unique<Impl>(std::move(options), std::move(handler));
    TARN_ASSIGN(impl->transport, Transport::start(impl->context));
    return std::unique_ptr<Server>(new Server(std::move(impl)));
  } catch (const std::exception& error) {
    return Error{ErrorCode::kResource, std::string("cannot start: ") + error.what(), "http"};
  }
}

int Server::port() const { return impl_->transport->port(); }

const Counters& Server::counters() const { return impl_->context.counters; }

void Server::stop_accepting() {
  impl_->context.draining = true;
  impl_->transport->stop_accepting();
}

Server::Drained Server::drain(Clock::time_point deadline) {
  const Counters& counters = impl_->context.counters;
  constexpr std::chrono::milliseconds kPause(2);
  const auto cuts = [&] { return counters.gone[static_cast<size_t>(Gone::kCut)].load(); };
  const int64_t cut_before = cuts();
  const int64_t at_work = counters.active;
  stop_accepting();
  while (counters.open > 0 && Clock::now() < deadline) std::this_thread::sleep_for(kPause);
  // A handler that ignores on_gone does not hold its connection.
  if (counters.open > 0) impl_->transport->cut();
  while (counters.open > 0) std::this_thread::sleep_for(kPause);
  const int64_t cut = cuts() - cut_before;
  return {.answered = std::max<int64_t>(0, at_work - cut), .cut = cut};
}

}  // namespace tarn::serve::http
