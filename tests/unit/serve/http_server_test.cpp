#include "serve/http/server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "http_client.h"

namespace tarn::serve::http {
namespace {

using Clock = Server::Clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Waits for `condition`, half a minute on a busy machine.
template <class Condition>
bool soon(Condition condition) {
  const Clock::time_point end = Clock::now() + seconds(30);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

/// The test's handler goes by the path: /hold (an exchange for the test to answer), /stream (the
/// same, a stream already), /throw, /block (until the test says so), /peer, /big; it echoes others.
class HttpServer : public testing::Test {
 protected:
  HttpServer() { options.access_log = false; }
  ~HttpServer() override {
    release.set_value();
    server.reset();  // its threads use the rest
  }

  void start() {
    auto started = Server::start(options, [this](const Request& request, auto exchange) {
      handle(request, std::move(exchange));
    });
    ASSERT_TRUE(started.ok()) << started.error().to_string();
    server = std::move(started).value();
    port = server->port();
  }

  void handle(const Request& request, std::shared_ptr<Exchange> exchange) {
    ++handled;
    if (request.path == "/throw") throw std::runtime_error("planted");
    if (request.path == "/block") released.wait();
    if (request.path == "/peer") return exchange->send({.body = request.peer});
    if (request.path == "/big") return exchange->send({.body = std::string(size_t{8} << 20, 'b')});
    if (request.path == "/hold" || request.path == "/stream") {
      exchange->on_gone([this] { ++gone; });
      if (request.path == "/stream") {
        exchange->start_stream({});
        exchange->write("data: hello\n\n");
      }
      std::lock_guard lock(mutex);
      held.push_back(std::move(exchange));
      return;
    }
    exchange->send({.content_type = "text/plain", .body = request.path + request.body});
  }

  size_t held_count() {
    std::lock_guard lock(mutex);
    return held.size();
  }
  int64_t refused(Refused reason) {
    return server->counters().refused[static_cast<size_t>(reason)];
  }

  ServerOptions options;
  std::atomic<int> handled{0}, gone{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> held;
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  std::unique_ptr<Server> server;
  int port = 0;
};

std::string post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

TEST_F(HttpServer, AnswersOnKeptConnectionsAndInOrder) {
  options.io_threads = 2;
  start();
  for (int i = 0; i < 3; ++i) {
    HttpClient client(port);
    EXPECT_EQ(client.get("/a").body, "/a");
    std::string many;
    for (int k = 0; k < 300; ++k) many += post("/" + std::to_string(k), "!");
    std::thread sender([&] { EXPECT_TRUE(client.send(many)); });
    for (int k = 0; k < 300; ++k) {
      EXPECT_EQ(client.answer().body, "/" + std::to_string(k) + "!");
    }
    sender.join();
  }
  EXPECT_EQ(server->counters().accepted, 3);
  EXPECT_TRUE(soon([&] { return server->counters().open == 0; }));
}

TEST_F(HttpServer, AnswersUrgentRequestsWhileAllWorkersWait) {
  options.workers = 2;
  options.limits.queued_requests = 1;
  options.limits.requests_per_key = 3;
  options.key = [](const Request&) { return "all"; };
  options.urgent = [](const Request& request) { return request.path == "/livez"; };
  start();
  std::vector<std::unique_ptr<HttpClient>> blocked;
  for (int i = 0; i < 3; ++i) {
    blocked.push_back(std::make_unique<HttpClient>(port));
    ASSERT_TRUE(blocked.back()->send(post("/block", "")));
    ASSERT_TRUE(soon([&] { return handled == std::min(i + 1, 2); }));
  }
  ASSERT_TRUE(soon([&] { return server->counters().active == 3; }));
  HttpClient client(port);
  EXPECT_EQ(client.get("/other").status, 503) << "the workers are not all taken";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.get("/livez").body, "/livez");
}

TEST_F(HttpServer, ListensOnIpv6AndSaysWhyItCannot) {
  options.address = "::1";
  start();
  HttpClient client(port, "::1");
  EXPECT_EQ(client.get("/peer").body, "::1");

  options.port = port;
  const auto handler = [](const Request&, std::shared_ptr<Exchange>) {};
  const auto taken = Server::start(options, handler);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kConflict);
  EXPECT_EQ(taken.error().to_string(), "::1 port " + std::to_string(port) +
                                           ": the address is in use, probably by another server");
  {
    options.address = "::";
    options.port = 0;
    const auto both = Server::start(options, [](const Request& request, auto exchange) {
      exchange->send({.body = request.peer});
    });
    ASSERT_TRUE(both.ok()) << both.error().to_string();
    EXPECT_EQ(HttpClient((*both)->port(), "::1").get("/").body, "::1");
    EXPECT_EQ(HttpClient((*both)->port()).get("/").body, "127.0.0.1");
  }
  options.address = "localhost";
  EXPECT_EQ(Server::start(options, handler).error().code, ErrorCode::kInvalidArgument);
  options.address = "127.0.0.1";
  options.port = 70000;
  EXPECT_EQ(Server::start(options, handler).error().where, "port");
  options.port = 0;
  options.limits.header_bytes = 0;
  EXPECT_EQ(Server::start(options, handler).error().where, "header_bytes");
}

TEST_F(HttpServer, FailedHandlersAre500) {
  set_log_sink([](LogLevel, std::string_view) {});
  start();
  HttpClient client(port);
  EXPECT_EQ(client.get("/throw").status, 500);
  EXPECT_EQ(client.get("/a").status, 200);
  server.reset();
  set_log_sink(nullptr);
}

TEST_F(HttpServer, NoticesAtOnceThatAClientHasGone) {
  options.limits.header_bytes = 1024;
  start();
  for (const char* path : {"/hold", "/stream"}) {
    HttpClient client(port);
    client.send("GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n\r\n");
    ASSERT_TRUE(soon([&] { return held_count() == 1; }));
    EXPECT_EQ(gone, 0);
    client.close();
    EXPECT_TRUE(soon([&] { return gone == 1; }));
    EXPECT_TRUE(held[0]->gone());
    EXPECT_FALSE(held[0]->write("x"));
    held.clear();
    gone = 0;
  }
  // Also while so much is pipelined that the server does not read on.
  HttpClient client(port);
  std::string many = "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n";
  for (int i = 0; i < 200; ++i) many += "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
  client.send_some(many);
  ASSERT_TRUE(soon([&] { return held_count() == 1; }));
  std::this_thread::sleep_for(milliseconds(20));
  client.close();
  EXPECT_TRUE(soon([&] { return gone == 1; }));
}

TEST_F(HttpServer, QueuedRequestsOfGoneClientsAreNotRun) {
  options.workers = 1;
  options.limits.queued_requests = 1;
  start();
  HttpClient blocker(port), waiting(port);
  blocker.send("GET /block HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(soon([&] { return handled == 1; }));
  waiting.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(soon([&] { return server->counters().active == 2; }));
  HttpClient third(port);
  const ClientAnswer full = third.get("/a");
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.head.find("Retry-After: "), std::string::npos);
  waiting.close();
  ASSERT_TRUE(soon([&] { return server->counters().active == 1; }));
  release.set_value();
  EXPECT_EQ(blocker.answer().status, 200);
  EXPECT_EQ(third.get("/b").status, 200);
  EXPECT_EQ(handled, 2);
  release = {};
}

TEST_F(HttpServer, ClientsThatStallAreGone) {
  options.limits.write_stall_seconds = 0.2;
  options.limits.header_seconds = 0.2;
  options.limits.body_seconds = 0.2;
  options.ping_seconds = 0.05;
  start();
  HttpClient stalled(port, "127.0.0.1", 4096);
  stalled.send("GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(
      soon([&] { return server->counters().gone[static_cast<size_t>(Gone::kStalled)] == 1; }));
  HttpClient slow_header(port), slow_body(port), silent(port), stream(port);
  slow_header.send("GET / HTTP/1.1\r\nHo");
  slow_body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  stream.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(slow_header.answer().status, 408);
  EXPECT_TRUE(slow_header.closed());
  EXPECT_EQ(slow_body.answer().status, 408);
  EXPECT_TRUE(slow_body.closed());
  EXPECT_TRUE(silent.closed());
  EXPECT_NE(stream.read_until(": ping").find(": ping\n\n"), std::string::npos);
}

TEST_F(HttpServer, AStreamWrittenFasterThanReadIsCancelled) {
  options.limits.stream_queue_bytes = 1 << 16;
  start();
  HttpClient client(port, "127.0.0.1", 4096);
  client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(soon([&] { return held_count() == 1; }));
  const std::string event = "data: " + std::string(1000, 'x') + "\n\n";
  int written = 0;
  while (held[0]->write(event) && written < 100'000) ++written;
  EXPECT_LT(written, 100'000);
  EXPECT_TRUE(soon([&] { return gone == 1; }));
  EXPECT_EQ(server->counters().gone[static_cast<size_t>(Gone::kOverflow)], 1);
}

TEST_F(HttpServer, ConnectionsHaveLimits) {
  options.limits.connections = 3;
  options.limits.connections_per_address = 2;
  start();
  HttpClient first(port), second(port);
  EXPECT_EQ(first.get("/a").status, 200);
  EXPECT_EQ(second.get("/a").status, 200);
  HttpClient third(port);
  const ClientAnswer full = third.answer();
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.head.find("Retry-After: "), std::string::npos);
  EXPECT_EQ(refused(Refused::kAddress), 1);
  second.close();
  EXPECT_TRUE(soon([&] { return HttpClient(port).get("/a").status == 200; }));
}

TEST_F(HttpServer, AllConnectionsHaveALimit) {
  options.limits.connections = 2;
  options.limits.connections_per_address = 0;
  start();
  HttpClient first(port), second(port);
  EXPECT_EQ(first.get("/a").status, 200);
  EXPECT_EQ(second.get("/a").status, 200);
  std::vector<HttpClient> more;
  for (int i = 0; i < 100; ++i) more.emplace_back(port);
  EXPECT_EQ(more[0].answer().status, 503);
  EXPECT_TRUE(soon([&] { return refused(Refused::kConnections) == 100; }));
  EXPECT_LE(server->counters().open, 2 + 64);
  EXPECT_EQ(first.get("/a").status, 200);
  more.clear();
  first.close();
  EXPECT_TRUE(soon([&] { return HttpClient(port).get("/a").status == 200; }));
}

TEST_F(HttpServer, WaitsForDescriptors) {
  std::atomic<int> warnings{0};
  set_log_sink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::kWarning; });
  start();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(0);
  ::close(next);
  // Room for the client's end and not for the server's.
  const rlimit few{static_cast<rlim_t>(next) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  HttpClient client(port);
  EXPECT_TRUE(client.connected());
  EXPECT_TRUE(soon([&] { return warnings > 1; }));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(client.get("/a").status, 200);
  EXPECT_LT(warnings, 20);
  server.reset();
  set_log_sink(nullptr);
}

TEST_F(HttpServer, DrainsWhatIsAtWorkAndCutsTheRest) {
  start();
  HttpClient idle(port), short_one(port), long_one(port);
  EXPECT_EQ(idle.get("/a").status, 200);
  for (HttpClient* client : {&short_one, &long_one}) {
    client->send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    ASSERT_TRUE(soon([&] { return held_count() == (client == &short_one ? 1 : 2); }));
  }
  server->stop_accepting();
  EXPECT_FALSE(HttpClient(port).connected());
  EXPECT_TRUE(idle.closed());
  std::thread answer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    held[0]->send({.body = "done"});
  });
  const Server::Drained drained = server->drain(Clock::now() + milliseconds(300));
  answer.join();
  EXPECT_EQ(drained.answered, 1);
  EXPECT_EQ(drained.cut, 1);
  EXPECT_EQ(gone, 1);
  EXPECT_EQ(short_one.answer().body, "done");
  EXPECT_EQ(long_one.answer().status, 0);
  EXPECT_EQ(server->counters().open, 0);
  EXPECT_EQ(server->drain(Clock::now()).cut, 0);
}

TEST_F(HttpServer, ExchangesMayOutliveTheServer) {
  start();
  HttpClient first(port), second(port);
  first.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  second.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(soon([&] { return held_count() == 2; }));
  server.reset();
  EXPECT_EQ(gone, 2);
  for (const auto& exchange : held) {
    exchange->send({});
    EXPECT_FALSE(exchange->write("x"));
    exchange->finish();
  }
}

/// Many threads at both ends, with clients that leave at any moment.
TEST_F(HttpServer, SurvivesClientsThatLeaveWhileStreamsAreWritten) {
  options.io_threads = 2;
  options.limits.connections_per_address = 0;
  start();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      std::vector<std::shared_ptr<Exchange>> now;
      {
        std::lock_guard lock(mutex);
        now.swap(held);
      }
      for (auto& exchange : now) {
        for (int i = 0; i < 3; ++i) exchange->write("data: x\n\n");
        exchange->finish();
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 60; ++i) {
        HttpClient client(port);
        client.send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
        if ((i + c) % 3 == 0) continue;
        if ((i + c) % 3 == 1) {
          client.read_until("hello");
          continue;
        }
        EXPECT_EQ(client.answer().body, "data: hello\n\ndata: x\n\ndata: x\n\ndata: x\n\n");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(soon([&] { return server->counters().active == 0; }));
  stop = true;
  writer.join();
  EXPECT_TRUE(soon([&] { return server->counters().open == 0; }));
}

}  // namespace
}  // namespace tarn::serve::http
