#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "http_client.h"
#include "serve/http/server.h"

// What a client may send or hold costs the server no more than its limits.

namespace tarn::serve::http {
namespace {

using Clock = Server::Clock;

constexpr int64_t kMiB = int64_t{1} << 20;

std::unique_ptr<Server> start(Handler handler) {
  ServerOptions options;
  options.access_log = false;
  options.limits.connections_per_address = 0;
  options.limits.linger_seconds = 0.5;
  auto server = Server::start(options, std::move(handler));
  EXPECT_TRUE(server.ok());
  return std::move(server).value();
}

Handler echo() {
  return [](const Request& request, std::shared_ptr<Exchange> exchange) {
    exchange->send({.body = request.path});
  };
}

/// Sends `piece` until the server has had enough; how many bytes that took, at most `most`.
int64_t send_until_cut(HttpClient* client, const std::string& piece, int64_t most) {
  client->patience = std::chrono::milliseconds(2000);
  int64_t sent = 0;
  while (sent < most && client->send(piece)) sent += static_cast<int64_t>(piece.size());
  return sent;
}

TEST(HttpLoad, HugeBodiesAndHeadersTakeNoMemory) {
  const auto server = start(echo());
  const int64_t before = resident_bytes();
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string kilobyte(1024, 'x');
  const std::string block(64 << 10, 'x');

  // A length that is too large is refused before any of the body.
  HttpClient told(server->port());
  told.send(post + "Content-Length: 1073741824\r\n\r\n");
  EXPECT_EQ(told.answer().status, 413);

  HttpClient chunked(server->port());
  chunked.send(post + "Transfer-Encoding: chunked\r\n\r\n");
  std::string chunks;
  for (int i = 0; i < 64; ++i) chunks += "400\r\n" + kilobyte + "\r\n";
  // The rest sits in the kernel's buffers of both sides.
  EXPECT_LT(send_until_cut(&chunked, chunks, 128 * kMiB), 16 * kMiB);

  HttpClient lines(server->port());
  lines.send(post);
  std::string fields;
  for (int i = 0; i < 1000; ++i) fields += "A: b\r\n";
  send_until_cut(&lines, fields, 200 * static_cast<int64_t>(fields.size()));

  HttpClient line(server->port());
  line.send(post + "A: ");
  EXPECT_LT(send_until_cut(&line, block, 64 * kMiB), 16 * kMiB);

  EXPECT_LT(resident_bytes() - before, 16 * kMiB);
  const auto& refused = server->counters().refused;
  EXPECT_EQ(refused[static_cast<size_t>(Refused::kBody)], 2);
  EXPECT_EQ(refused[static_cast<size_t>(Refused::kHeader)], 2);
  EXPECT_EQ(HttpClient(server->port()).get("/a").status, 200);
}

TEST(HttpLoad, TheRefusalArrivesThoughTheClientGoesOnSending) {
  const auto server = start(echo());
  for (int i = 0; i < 20; ++i) {
    HttpClient client(server->port());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("300000\r\n" + std::string(100'000, 'x'));
    EXPECT_EQ(client.answer().status, 413);
  }
}

/// Both ends are in this process, so a stream takes two descriptors.
int streams_to_open() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 20'000);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(5000, (limit.rlim_cur - 200) / 2));
}

TEST(HttpLoad, IdleStreamsDoNotDelayOthers) {
  std::mutex mutex;
  std::vector<std::shared_ptr<Exchange>> held;
  std::atomic<int> gone{0};
  const auto server = start([&](const Request& request, std::shared_ptr<Exchange> exchange) {
    if (request.path != "/stream") return exchange->send({.body = "{}"});
    exchange->on_gone([&] { ++gone; });
    exchange->start_stream({});
    exchange->write("data: 1\n\n");
    std::lock_guard lock(mutex);
    held.push_back(std::move(exchange));
  });
  const int count = streams_to_open();
  ASSERT_GE(count, 400);
  const int64_t before = resident_bytes();
  std::vector<HttpClient> clients;
  clients.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    clients.emplace_back(server->port());
    ASSERT_TRUE(clients.back().send("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"));
  }
  for (HttpClient& client : clients) {
    ASSERT_NE(client.read_until("data: 1").find("data: 1\n\n"), std::string::npos);
  }
  EXPECT_EQ(server->counters().streams, count);
  const int64_t each = (resident_bytes() - before) / count;

  HttpClient plain(server->port());
  std::vector<double> seconds;
  for (int i = 0; i < 200; ++i) {
    const Clock::time_point sent = Clock::now();
    ASSERT_EQ(plain.get("/a").status, 200);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - sent).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("%d streams, %ld bytes each, GET median %.0f us, 99 %% %.0f us\n", count,
              static_cast<long>(each), 1e6 * seconds[100], 1e6 * seconds[198]);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(each, 16 << 10);  // both ends of it
#endif

  for (const auto& exchange : held) EXPECT_TRUE(exchange->write("data: 2\n\n"));
  for (HttpClient& client : clients) {
    ASSERT_NE(client.read_until("data: 2").find("data: 2\n\n"), std::string::npos);
  }
  clients.clear();
  const Clock::time_point end = Clock::now() + std::chrono::seconds(10);
  while (gone < count && Clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(gone, count);
  EXPECT_EQ(server->counters().active, 0);
}

}  // namespace
}  // namespace tarn::serve::http
