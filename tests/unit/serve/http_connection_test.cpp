#include "serve/http/connection.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "http_client.h"

namespace tarn::serve::http {
namespace {

using std::chrono::milliseconds;

class NoWaker final : public Waker {
 public:
  void wake() override { ++count; }
  int count = 0;
};

/// A connection whose clock and handlers are this test's.
class HttpConnection : public testing::Test {
 protected:
  HttpConnection() {
    context.options.access_log = false;
    context.dispatch = [this](Request request, std::shared_ptr<ExchangeState> state) {
      if (!room) return false;
      requests.push_back(std::move(request));
      states.push_back(state);
      exchanges.push_back(make_exchange(std::move(state)));
      return true;
    };
  }

  void begin() { connection = std::make_unique<Connection>(context, "peer", waker, now); }
  void send(std::string_view bytes) {
    connection->receive(bytes, now);
    flush();
  }
  void pump() {
    connection->pump(now);
    flush();
  }
  void pass(double seconds) {
    now += std::chrono::duration_cast<Connection::Clock::duration>(
        std::chrono::duration<double>(seconds));
    connection->tick(now);
    flush();
  }
  void flush() {
    while (reading && !connection->output().empty()) {
      const std::string_view output = connection->output();
      received += output;
      connection->wrote(output.size(), now);
    }
  }
  ClientAnswer answer() { return take_answer(&received).value_or(ClientAnswer{}); }
  int64_t refused(Refused reason) { return context.counters.refused[static_cast<size_t>(reason)]; }
  int64_t gone(Gone reason) { return context.counters.gone[static_cast<size_t>(reason)]; }

  ConnectionContext context;
  std::shared_ptr<NoWaker> waker = std::make_shared<NoWaker>();
  Connection::Time now = Connection::Clock::now();
  bool room = true, reading = true;
  std::deque<Request> requests;
  std::deque<std::shared_ptr<ExchangeState>> states;
  std::deque<std::shared_ptr<Exchange>> exchanges;
  std::string received;
  std::unique_ptr<Connection> connection;
};

constexpr std::string_view kGet = "GET /a HTTP/1.1\r\nHost: a\r\n\r\n";

TEST_F(HttpConnection, AnswersPipelinedRequestsInOrder) {
  begin();
  send(
      "GET /1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: one\r\n\r\nGET /2 HTTP/1.1\r\nHost: "
      "a\r\n\r\nGET");
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].id, "one");
  EXPECT_EQ(requests[0].peer, "peer");
  exchanges[0]->send({.body = "{1}"});
  pump();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[1].path, "/2");
  EXPECT_EQ(requests[1].id.size(), 16U);
  send(" /3 HTTP/1.1\r\nHost: a\r\n\r\n");
  exchanges[1]->send({.status = 404, .body = "{2}"});
  pump();
  exchanges[2]->send({.body = "{3}"});
  pump();
  ClientAnswer first = answer();
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "{1}");
  EXPECT_NE(first.head.find("X-Request-Id: one\r\n"), std::string::npos);
  EXPECT_NE(first.head.find("Content-Type: application/json\r\n"), std::string::npos);
  EXPECT_EQ(first.head.find("Connection:"), std::string::npos);
  EXPECT_EQ(answer().status, 404);
  EXPECT_EQ(answer().body, "{3}");
  EXPECT_EQ(context.counters.by_status[200], 2);
  EXPECT_EQ(context.counters.by_status[404], 1);
  EXPECT_EQ(context.counters.active, 0);
}

TEST_F(HttpConnection, EndsIdleAndSlowClients) {
  begin();
  pass(9.9);
  EXPECT_FALSE(connection->closed());
  pass(0.2);
  EXPECT_TRUE(connection->closed());  // never said anything
  EXPECT_EQ(received, "");

  begin();
  send(kGet);
  exchanges.back()->send({});
  pump();
  answer();
  pass(59);
  EXPECT_FALSE(connection->closed());
  pass(1.1);
  EXPECT_TRUE(connection->closed());
  EXPECT_EQ(received, "");

  begin();
  send("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 9; ++i) {
    pass(1);
    send("X: y\r\n");
  }
  EXPECT_EQ(received, "");
  pass(1.1);
  const ClientAnswer slow = answer();
  EXPECT_EQ(slow.status, 408);
  EXPECT_NE(slow.body.find("\"code\":\"request_timeout\""), std::string::npos);
  EXPECT_EQ(refused(Refused::kHeaderTime), 1);
  EXPECT_TRUE(connection->lingers());
  pass(2.1);
  EXPECT_TRUE(connection->closed());

  begin();
  send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
  for (int i = 0; i < 29; ++i) {
    pass(1);
    send("x");
  }
  EXPECT_EQ(received, "");
  pass(1.1);
  EXPECT_EQ(answer().status, 408);
  EXPECT_EQ(refused(Refused::kBodyTime), 1);
}

TEST_F(HttpConnection, RefusesWithTheErrorBody) {
  begin();
  send("BAD\r\n\r\n");
  const ClientAnswer refusal = answer();
  EXPECT_EQ(refusal.status, 400);
  const auto body = parse_json(refusal.body, "body");
  ASSERT_TRUE(body.ok());
  const Json* error = body->find("error");
  ASSERT_NE(error, nullptr);
  EXPECT_NE(error->find("message"), nullptr);
  EXPECT_EQ(*error->find("type")->as_string(), "invalid_request_error");
  EXPECT_TRUE(error->find("param")->is_null());
  EXPECT_EQ(*error->find("code")->as_string(), "malformed_request");
  EXPECT_NE(refusal.head.find("X-Request-Id: "), std::string::npos);
  EXPECT_NE(refusal.head.find("Connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(connection->lingers());
  // What still comes is dropped, and there is an end to that too.
  for (int i = 0; i < 64; ++i) send(std::string(4096, 'x'));
  EXPECT_FALSE(connection->closed());
  send("x");
  EXPECT_TRUE(connection->closed());
  EXPECT_EQ(received, "");
}

TEST_F(HttpConnection, TellsClientsToContinueOnce) {
  begin();
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: ";
  send(head + "3\r\n\r\n");
  EXPECT_EQ(std::exchange(received, {}), "HTTP/1.1 100 Continue\r\n\r\n");
  send("abc");
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].body, "abc");
  exchanges[0]->send({});
  pump();
  EXPECT_EQ(answer().status, 200);
  send(head + "3\r\n\r\nabc");  // did not wait
  exchanges[1]->send({});
  pump();
  EXPECT_EQ(answer().status, 200);
  send(head + "9999999\r\n\r\n");
  EXPECT_EQ(answer().status, 413);
}

TEST_F(HttpConnection, EveryAnswerHasTheServersHeaders) {
  context.options.headers = {{"X-Of-All", "yes"}, {"Vary", "Origin"}};
  const auto has = [](const ClientAnswer& one) {
    return one.head.find("X-Of-All: yes\r\nVary: Origin\r\n") != std::string::npos;
  };
  begin();
  send(kGet);
  exchanges[0]->send({.headers = {{"X-Own", "too"}}});
  pump();
  const ClientAnswer whole = answer();
  EXPECT_TRUE(has(whole) && whole.head.find("X-Own: too\r\n") != std::string::npos) << whole.head;
  send(kGet);
  exchanges[1]->start_stream({});
  exchanges[1]->finish();
  pump();
  EXPECT_TRUE(has(answer()));
  room = false;
  send(kGet);
  const ClientAnswer busy = answer();
  EXPECT_TRUE(busy.status == 503 && has(busy)) << busy.head;
  send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n");
  const ClientAnswer large = answer();
  EXPECT_TRUE(large.status == 413 && has(large)) << large.head;
  begin();
  connection->turn_away(Refused::kAddress, now);
  flush();
  const ClientAnswer away = answer();
  EXPECT_TRUE(away.status == 503 && has(away)) << away.head;
}

TEST_F(HttpConnection, HeadAndOptions) {
  begin();
  send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(requests[0].method, "GET");
  exchanges[0]->send({.body = "12345"});
  pump();
  EXPECT_NE(received.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_TRUE(received.ends_with("\r\n\r\n"));
  received.clear();
  send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_FALSE(exchanges[1]->start_stream({}));
  EXPECT_FALSE(exchanges[1]->write("data: x\n\n"));
  exchanges[1]->finish();
  pump();
  EXPECT_TRUE(received.ends_with("\r\n\r\n"));
  received.clear();
  send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(answer().status, 204);
  send("OPTIONS /a HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(requests.back().method, "OPTIONS");
}

TEST_F(HttpConnection, StreamsAndPings) {
  begin();
  send(kGet);
  ASSERT_TRUE(exchanges[0]->start_stream({}));
  EXPECT_TRUE(exchanges[0]->write("data: 1\n\n"));
  EXPECT_TRUE(exchanges[0]->write("data: 2\n\n"));
  pump();
  EXPECT_EQ(context.counters.streams, 1);
  pass(14);
  exchanges[0]->write("data: 3\n\n");
  pump();
  pass(14);
  EXPECT_EQ(received.find(": ping"), std::string::npos);
  pass(1);
  pass(15);
  pass(1);
  exchanges[0]->finish();
  EXPECT_FALSE(exchanges[0]->write("late"));
  exchanges[0]->send({.body = "late"});
  pump();
  const ClientAnswer stream = answer();
  EXPECT_EQ(stream.body, "data: 1\n\ndata: 2\n\ndata: 3\n\n: ping\n\n: ping\n\n");
  EXPECT_NE(stream.head.find("X-Accel-Buffering: no\r\n"), std::string::npos);
  EXPECT_NE(stream.head.find("Cache-Control: no-cache\r\n"), std::string::npos);
  EXPECT_EQ(context.counters.streams, 0);
  EXPECT_EQ(received, "");
  send(kGet);  // the connection is still good
  EXPECT_EQ(requests.size(), 2U);
}

TEST_F(HttpConnection, OldClientsGetStreamsUntilTheEnd) {
  begin();
  send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  exchanges[0]->start_stream({.content_type = "text/plain"});
  exchanges[0]->write("abc");
  exchanges[0]->finish();
  pump();
  EXPECT_TRUE(received.ends_with("Connection: close\r\n\r\nabc")) << received;
  EXPECT_TRUE(connection->closed());
}

TEST_F(HttpConnection, AStreamThatIsNotReadIsCancelled) {
  context.options.limits.stream_queue_bytes = 1000;
  begin();
  send(kGet);
  int told = 0;
  exchanges[0]->on_gone([&] { ++told; });
  exchanges[0]->start_stream({});
  pump();
  // Longer than the queue, but alone.
  EXPECT_TRUE(exchanges[0]->write(std::string(5000, 'x')));
  reading = false;
  pump();
  EXPECT_FALSE(exchanges[0]->write("x"));
  EXPECT_TRUE(exchanges[0]->gone());
  EXPECT_EQ(told, 0);  // not on the writer's thread
  connection->wrote(1, now);
  reading = true;
  flush();
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(connection->closed());
  EXPECT_EQ(gone(Gone::kOverflow), 1);
  EXPECT_EQ(context.counters.active, 0);
}

TEST_F(HttpConnection, AClientThatReadsNothingIsGone) {
  begin();
  reading = false;
  send(kGet);
  int told = 0;
  exchanges[0]->on_gone([&] { ++told; });
  exchanges[0]->start_stream({});
  exchanges[0]->write("data: 1\n\n");
  pump();
  pass(29);
  EXPECT_EQ(told, 0);
  connection->wrote(1, now);  // a byte is progress
  pass(29);
  EXPECT_EQ(told, 0);
  pass(1.5);
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(exchanges[0]->write("x"));
  EXPECT_TRUE(connection->closed());
  EXPECT_EQ(gone(Gone::kStalled), 1);
}

TEST_F(HttpConnection, TellsOfGoneClientsOnce) {
  begin();
  send(kGet);
  int told = 0, late = 0;
  exchanges[0]->on_gone([&] { ++told; });
  connection->receive_end(now);
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(exchanges[0]->gone());
  exchanges[0]->on_gone([&] { ++late; });
  EXPECT_EQ(late, 1);
  exchanges[0]->send({});
  EXPECT_FALSE(exchanges[0]->start_stream({}));
  connection->receive_end(now);
  connection.reset();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(context.counters.by_status[499], 1);
  EXPECT_EQ(gone(Gone::kClosed), 1);

  begin();
  send(kGet);
  exchanges[1]->on_gone([&] { ++told; });
  exchanges[1]->send({});  // the end: the rest is not the handler's
  pump();
  connection->receive_end(now);
  EXPECT_EQ(told, 1);
}

TEST_F(HttpConnection, ForgottenExchangesAreAnswered) {
  begin();
  send(kGet);
  exchanges.clear();
  pump();
  EXPECT_EQ(answer().status, 500);
  send(kGet);
  exchanges[0]->start_stream({});
  exchanges[0]->write("data: 1\n\n");
  exchanges.clear();
  pump();
  EXPECT_TRUE(received.ends_with("data: 1\n\n\r\n")) << received;  // and no end of the body
  EXPECT_TRUE(connection->closed());
}

TEST_F(HttpConnection, KeysAndTheQueueHaveLimits) {
  context.options.limits.requests_per_key = 1;
  context.options.key = [](const Request& request) {
    const std::string* key = request.header("X-Key");
    return key == nullptr ? std::string() : *key;
  };
  const std::string mine = "GET /a HTTP/1.1\r\nHost: a\r\nX-Key: mine\r\n\r\n";
  begin();
  send(mine);
  auto first = std::move(connection);
  begin();
  send(mine);
  const ClientAnswer full = answer();
  EXPECT_EQ(full.status, 503);
  EXPECT_NE(full.head.find("Retry-After: 1\r\n"), std::string::npos);
  EXPECT_EQ(refused(Refused::kKey), 1);
  first.reset();
  send(mine);  // on the same connection
  EXPECT_EQ(requests.size(), 2U);
  exchanges.back()->send({});
  pump();
  answer();
  room = false;
  send(mine);
  EXPECT_EQ(answer().status, 503);
  EXPECT_EQ(refused(Refused::kQueue), 1);
  room = true;
  send(mine);  // the key was given back
  EXPECT_EQ(requests.size(), 3U);
}

TEST_F(HttpConnection, DrainsPolitely) {
  begin();
  context.draining = true;
  connection->stop(now);
  EXPECT_TRUE(connection->closed());

  context.draining = false;
  begin();
  send(std::string(kGet) + std::string(kGet));
  context.draining = true;
  connection->stop(now);
  EXPECT_FALSE(connection->closed());
  exchanges[0]->send({.body = "last"});
  pump();
  const ClientAnswer last = answer();
  EXPECT_EQ(last.body, "last");
  EXPECT_NE(last.head.find("Connection: close\r\n"), std::string::npos);
  EXPECT_TRUE(connection->lingers());
  EXPECT_EQ(requests.size(), 1U);

  context.draining = false;
  begin();
  send("GET /a HTTP/1.1\r\n");
  context.draining = true;
  connection->stop(now);
  send("Host: a\r\n\r\n");
  EXPECT_EQ(answer().status, 503);
  EXPECT_TRUE(connection->closed());
}

TEST_F(HttpConnection, HeadersCannotBeSmuggledIntoAnswers) {
  begin();
  send(kGet);
  exchanges[0]->send(
      {.headers = {{"X-A", "1\r\nX-B: 2"}, {"Bad Name", "x"}, {"Content-Length", "9"}},
       .body = "b"});
  pump();
  const ClientAnswer safe = answer();
  EXPECT_NE(safe.head.find("X-A: 1  X-B: 2\r\n"), std::string::npos);
  EXPECT_EQ(safe.head.find("Bad Name"), std::string::npos);
  EXPECT_EQ(safe.body, "b");
}

TEST_F(HttpConnection, LogsOneEscapedLinePerRequest) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  context.options.access_log = true;
  context.options.key = [](const Request& request) {
    return request.method == "GET" && request.path != "/a\"\xff" ? "address peer" : "key alice";
  };
  begin();
  send("GET /a\"\xff?secret=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: bad id\r\n\r\n");
  exchanges[0]->send({.body = "12"});
  pump();
  send(kGet);
  connection->receive_end(now);
  set_log_sink(nullptr);
  ASSERT_EQ(lines.size(), 2U);
  const auto line = parse_json(lines[0], "line");
  ASSERT_TRUE(line.ok()) << lines[0];
  EXPECT_EQ(*line->find("method")->as_string(), "GET");
  EXPECT_EQ(*line->find("path")->as_string(), "/a\"\xef\xbf\xbd");
  EXPECT_EQ(*line->find("status")->as_int(), 200);
  EXPECT_EQ(*line->find("bytes")->as_int(), static_cast<int64_t>(received.size()));
  EXPECT_EQ(line->find("id")->as_string()->size(), 16U);
  EXPECT_EQ(*line->find("peer")->as_string(), "peer");
  EXPECT_EQ(*line->find("key")->as_string(), "alice");
  const std::string& time = *line->find("time")->as_string();
  ASSERT_EQ(time.size(), 24U) << time;
  EXPECT_EQ(time[10], 'T');
  EXPECT_EQ(time[19], '.');
  EXPECT_EQ(time[23], 'Z');
  EXPECT_NE(line->find("seconds"), nullptr);
  EXPECT_EQ(line->find("gone"), nullptr);
  EXPECT_EQ(lines[0].find("secret"), std::string::npos);
  const auto left = parse_json(lines[1], "line");
  ASSERT_TRUE(left.ok());
  EXPECT_EQ(*left->find("gone")->as_string(), "closed");
  EXPECT_EQ(*left->find("status")->as_int(), 499);
  EXPECT_EQ(left->find("key"), nullptr);
}

}  // namespace
}  // namespace tarn::serve::http
