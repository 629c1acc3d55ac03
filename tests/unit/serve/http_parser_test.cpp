#include "serve/http/parser.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace tarn::serve::http {
namespace {

struct Parsed {
  std::vector<Request> requests;
  int failed = 0;  // its status
  std::string message;
  bool header_told = false;
};

/// Parses everything, with `step` more bytes offered at a time.
Parsed parse(std::string_view bytes, size_t step, const Limits& limits = {}) {
  Parsed parsed;
  auto parser = std::make_unique<RequestParser>(limits);
  size_t begin = 0, end = 0;
  while (true) {
    size_t used = 0;
    // A copy of its own, so that a sanitizer sees a read past what has come.
    const std::vector<char> offered(bytes.begin() + begin, bytes.begin() + end);
    const auto result = parser->put({offered.data(), offered.size()}, &used);
    begin += used;
    if (result == RequestParser::Step::kFailed) {
      parsed.failed = parser->failure().status;
      parsed.message = parser->failure().message;
      return parsed;
    }
    if (result == RequestParser::Step::kHeader) parsed.header_told = true;
    if (result == RequestParser::Step::kDone) {
      parsed.requests.push_back(parser->request());
      parser = std::make_unique<RequestParser>(limits);
    }
    if (result == RequestParser::Step::kMore && used == 0) {
      if (end == bytes.size()) return parsed;
      end = std::min(bytes.size(), end + step);
    }
  }
}

int status_of(std::string_view bytes, const Limits& limits = {}) {
  const int whole = parse(bytes, bytes.size(), limits).failed;
  EXPECT_EQ(parse(bytes, 1, limits).failed, whole) << bytes;
  return whole;
}

TEST(HttpParser, RequestsInPiecesOfAnySize) {
  const std::string bytes =
      "GET /v1/models?a=1&b=%20 HTTP/1.1\r\nHost: a\r\nX-Thing:  two words \r\n\r\n"
      "POST /x HTTP/1.1\r\nhost: a\r\nContent-Length: 5\r\n\r\nhello"
      "POST /y HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5;ext=1\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: x\r\n\r\n"
      "POST /z HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
      "HEAD http://example.org?q HTTP/1.0\r\n\r\n";
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{64}, bytes.size()}) {
    const Parsed parsed = parse(bytes, step);
    ASSERT_EQ(parsed.requests.size(), 5U) << step << parsed.message;
    const auto& all = parsed.requests;
    EXPECT_EQ(all[0].method, "GET");
    EXPECT_EQ(all[0].path, "/v1/models");
    EXPECT_EQ(all[0].query, "a=1&b=%20");
    EXPECT_EQ(*all[0].header("x-thing"), "two words");
    EXPECT_EQ(all[0].header("none"), nullptr);
    EXPECT_EQ(all[0].parameter("b"), " ");
    EXPECT_EQ(all[0].parameter("c"), std::nullopt);
    EXPECT_EQ(all[1].body, "hello");
    EXPECT_EQ(all[2].body, "hello!");
    EXPECT_EQ(all[2].header("Trailer"), nullptr);
    EXPECT_EQ(all[3].body, "");
    EXPECT_EQ(all[4].method, "GET");
    EXPECT_TRUE(all[4].head);
    EXPECT_EQ(all[4].path, "/");
    EXPECT_EQ(all[4].query, "q");
  }
}

TEST(HttpParser, PercentDecodes) {
  EXPECT_EQ(percent_decode("a%2Fb+%C3%bc"), "a/b \xc3\xbc");
  EXPECT_EQ(percent_decode("100%"), std::nullopt);
  EXPECT_EQ(percent_decode("%4"), std::nullopt);
  EXPECT_EQ(percent_decode("%zz"), std::nullopt);
}

TEST(HttpParser, RefusesWhatIsMalformed) {
  const std::string get = "GET / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(status_of("\x16\x03\x01\x02 hello there\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET x HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);  // no Host
  EXPECT_EQ(status_of(get + "Host: b\r\n\r\n"), 400);
  EXPECT_EQ(status_of(get + "Bad Name: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of(get + "A: b\x01\r\n\r\n"), 400);
  EXPECT_EQ(status_of(get + "A\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\nB: c\r\n\r\n"), 400);
  EXPECT_EQ(status_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
  EXPECT_EQ(status_of("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n"), 501);
  EXPECT_EQ(status_of(get + "Expect: tea\r\n\r\n"), 417);
}

TEST(HttpParser, RefusesBodiesOfUnclearLength) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(status_of(post + "Content-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 1x\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 99999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: gzip, chunked\r\n\r\n"), 501);
  EXPECT_EQ(status_of(post + "Transfer-Encoding: identity\r\n\r\n"), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(chunked + "zz\r\n\r\n"), 400);
  EXPECT_EQ(status_of(chunked + "1\r\nabcdef\r\n"), 400);
  EXPECT_EQ(status_of(chunked + "-1\r\n\r\n\r\n"), 400);
  EXPECT_EQ(status_of(chunked + "ffffffffffffffff\r\n\r\n"), 413);
  EXPECT_EQ(status_of(chunked + "10000000000000000\r\n\r\n"), 400);
  EXPECT_EQ(status_of(chunked + "0\r\nContent-Length: 5\r\n\r\n"), 400);
}

TEST(HttpParser, HoldsTheLimits) {
  Limits limits;
  limits.header_bytes = 200;
  limits.header_fields = 5;
  limits.body_bytes = 10;
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(status_of(post + "A: " + std::string(100, 'x') + "\r\n\r\n", limits), 0);
  EXPECT_EQ(status_of(post + "A: " + std::string(200, 'x') + "\r\n\r\n", limits), 431);
  EXPECT_EQ(status_of(post + "A: " + std::string(5000, 'x'), limits), 431);
  EXPECT_EQ(status_of(post + "A: 1\r\nA: 2\r\nA: 3\r\nA: 4\r\n\r\n", limits), 0);
  EXPECT_EQ(status_of(post + "A: 1\r\nA: 2\r\nA: 3\r\nA: 4\r\nA: 5\r\n\r\n", limits), 431);
  EXPECT_EQ(status_of("GET /" + std::string(300, 'x') + " HTTP/1.1\r\n", limits), 431);
  EXPECT_EQ(status_of(post + "Content-Length: 10\r\n\r\n0123456789", limits), 0);
  EXPECT_EQ(status_of(post + "Content-Length: 11\r\n\r\n", limits), 413);
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(status_of(chunked + "a\r\n0123456789\r\n0\r\n\r\n", limits), 0);
  EXPECT_EQ(status_of(chunked + "a\r\n0123456789\r\n1\r\nx\r\n", limits), 413);
  EXPECT_EQ(status_of(chunked + "1;" + std::string(300, 'x'), limits), 431);
  EXPECT_EQ(status_of(chunked + "0\r\nA: " + std::string(300, 'x'), limits), 431);
  // Many short ones are as bad as one that is long.
  std::string extensions;
  for (int i = 0; i < 9; ++i) extensions += "1;e=" + std::string(30, 'x') + "\r\n.\r\n";
  EXPECT_EQ(status_of(chunked + extensions, limits), 431);
  std::string lines;
  limits.header_fields = 1000;
  for (int i = 0; i < 50; ++i) lines += "A: 12345\r\n";
  EXPECT_EQ(status_of(post + lines + "\r\n", limits), 431);
}

}  // namespace
}  // namespace tarn::serve::http
