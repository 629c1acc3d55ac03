#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/load/answer_reader.h"
#include "serve/load/client.h"
#include "serve/load/completion_check.h"
#include "serve/load/event_reader.h"
#include "serve/load/load.h"
#include "serve/load/statistics.h"
#include "serve/load/target.h"

namespace tarn::serve::load {
namespace {

std::vector<std::string> events_of(const std::string& bytes, size_t piece) {
  EventReader reader;
  std::vector<std::string> events;
  for (size_t i = 0; i < bytes.size(); i += piece) {
    reader.put(std::string_view(bytes).substr(i, piece),
               [&](std::string_view data) { events.emplace_back(data); });
  }
  EXPECT_TRUE(reader.clean());
  return events;
}

TEST(EventReader, TakesEventsHoweverTheyAreCut) {
  const std::string bytes =
      ": ping\n\ndata: one\n\nevent: x\ndata:two\r\ndata:  three\r\n\r\nid: 4\n\ndata:\n\n";
  const std::vector<std::string> wanted = {"one", "two\n three", ""};
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    EXPECT_EQ(events_of(bytes, piece), wanted) << piece;
  }
}

TEST(EventReader, KnowsAnUnfinishedEvent) {
  EventReader reader;
  reader.put("data: x\n", [](std::string_view) { FAIL(); });
  EXPECT_FALSE(reader.clean());
}

TEST(AnswerReader, ReadsLengthsChunksAndEnds) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  const std::vector<std::string> answers = {
      head + "Content-Length: 5\r\n\r\nhello",
      head + "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"};
  for (const std::string& answer : answers) {
    for (size_t piece = 1; piece <= answer.size(); ++piece) {
      AnswerReader reader;
      std::string body;
      auto step = AnswerReader::Step::kMore;
      for (size_t i = 0; i < answer.size(); i += piece) {
        EXPECT_EQ(step, AnswerReader::Step::kMore);
        step = reader.put(std::string_view(answer).substr(i, piece), &body);
      }
      EXPECT_EQ(step, AnswerReader::Step::kDone) << reader.problem();
      EXPECT_EQ(body, "hello");
      EXPECT_EQ(reader.status(), 200);
      EXPECT_TRUE(reader.keep_alive());
    }
  }
  AnswerReader until_end;
  std::string body;
  EXPECT_EQ(until_end.put(head + "\r\nhello", &body), AnswerReader::Step::kMore);
  EXPECT_EQ(until_end.end(), AnswerReader::Step::kDone);
  EXPECT_EQ(body, "hello");
  EXPECT_FALSE(until_end.keep_alive());
}

TEST(AnswerReader, MakesNoRoomForWhatIsOnlyClaimed) {
  AnswerReader reader;
  std::string body;
  const auto step =
      reader.put("HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000000\r\n\r\nhello", &body);
  EXPECT_EQ(step, AnswerReader::Step::kMore);
  EXPECT_EQ(body, "hello");
}

TEST(AnswerReader, RefusesWhatIsNoAnswer) {
  const auto fails = [](const std::string& bytes) {
    AnswerReader reader;
    std::string body;
    const auto step = reader.put(bytes, &body);
    return step == AnswerReader::Step::kFailed || reader.end() == AnswerReader::Step::kFailed;
  };
  EXPECT_TRUE(fails("SSH-2.0-OpenSSH\r\n\r\n"));
  EXPECT_TRUE(fails("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"));
  EXPECT_TRUE(fails("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!"));
  EXPECT_TRUE(fails("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n"));
  EXPECT_TRUE(fails("HTTP/1.1 200 OK\r\nContent-"));
}

TEST(Target, ReadsUrls) {
  const auto target = parse_target("http://[::1]:8080/proxy/v1/");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->host, "::1");
  EXPECT_EQ(target->port, 8080);
  EXPECT_EQ(target->prefix, "/proxy");
  EXPECT_EQ(target->request("POST", "/v1/x", "{}", "k"),
            "POST /proxy/v1/x HTTP/1.1\r\nHost: [::1]:8080\r\nAuthorization: Bearer k\r\n"
            "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(parse_target("http://host")->port, 80);
  EXPECT_EQ(parse_target("https://host").error().code, ErrorCode::kUnsupported);
  for (const char* bad : {"host:80", "http://", "http://:80", "http://h:0", "http://h:65536",
                          "http://h:8x", "http://[::1", "http://[::1]80", "http://h/a\r\nb"}) {
    EXPECT_FALSE(parse_target(bad).ok()) << bad;
  }
}

/// The verdict on these events; a right answer has 5 tokens of prompt and 3 of 3 drawn.
std::string verdict(const std::vector<std::string>& events, Expected expected = {5, 3}) {
  CompletionCheck check(expected);
  for (const std::string& event : events) check.event(event);
  return check.verdict();
}

std::string chunk(const std::string& text, const std::string& reason = "null") {
  return R"({"choices":[{"index":0,"text":")" + text + R"(","finish_reason":)" + reason + "}]}";
}

std::string usage(int prompt, int drawn, int total, int seq = 2) {
  return R"({"choices":[],"usage":{"prompt_tokens":)" + std::to_string(prompt) +
         R"(,"completion_tokens":)" + std::to_string(drawn) + R"(,"total_tokens":)" +
         std::to_string(total) + R"(},"tarn":{"seq":)" + std::to_string(seq) + "}}";
}

TEST(CompletionCheck, TakesARightAnswer) {
  const std::vector<std::string> right = {chunk("a"), chunk("bc"), chunk("", "\"length\""),
                                          usage(5, 3, 8), "[DONE]"};
  EXPECT_EQ(verdict(right), "");
  EXPECT_EQ(verdict(right, {5, 3, true, true, 2}), "");
  const std::string stopped = chunk("", "\"stop\"");
  EXPECT_EQ(verdict({chunk("a"), stopped, usage(5, 1, 6), "[DONE]"}), "");
}

TEST(CompletionCheck, FindsEveryKindOfWrongAnswer) {
  const std::string end = chunk("", "\"length\"");
  const std::string good = usage(5, 3, 8);
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {chunk("abc"), end, good},                      // no [DONE]
      {chunk("abc"), good, "[DONE]"},                 // no finish_reason
      {chunk("abc"), end, "[DONE]"},                  // no usage
      {chunk("abc"), end, good, "[DONE]", end},       // goes on
      {chunk("abc"), end, end, good, "[DONE]"},       // ends twice
      {end, chunk("abc"), good, "[DONE]"},            // text behind the end
      {chunk("abc"), end, usage(5, 3, 9), "[DONE]"},  // sum
      {chunk("abc"), end, usage(4, 3, 7), "[DONE]"},  // prompt
      {chunk("abc"), end, usage(5, 2, 7), "[DONE]"},  // length before the limit
      {chunk("abc"), end, usage(5, 4, 9), "[DONE]"},  // more than the limit
      {chunk("a"), chunk("b"), chunk("c"), chunk("d"), end, good, "[DONE]"},  // more pieces
      {"{", end, good, "[DONE]"},                                             // no JSON
      {R"({"error":{"message":"x"}})", end, good, "[DONE]"},
      {R"({"choices":[{"text":"1 2","tokens":[1,2],"finish_reason":"length"}]})", good, "[DONE]"}};
  for (size_t i = 0; i < wrong.size(); ++i) EXPECT_NE(verdict(wrong[i]), "") << i;
}

TEST(CompletionCheck, CountsBytes) {
  const std::string end = chunk("", "\"length\"");
  const auto of = [&](const std::string& text, bool in_session) {
    return verdict({chunk(text), end, usage(5, 3, 8), "[DONE]"}, {5, 3, true, in_session, {}});
  };
  EXPECT_EQ(of("abc", false), "");
  EXPECT_EQ(of("\xEF\xBF\xBD", false), "");   // of three bytes
  EXPECT_EQ(of("a\xEF\xBF\xBD", false), "");  // of two
  EXPECT_EQ(of("ab\xEF\xBF\xBD", false), "");
  EXPECT_NE(of("ab", false), "");
  EXPECT_NE(of("abcd", false), "");
  EXPECT_NE(of("abc\xEF\xBF\xBD", false), "");
  EXPECT_EQ(of("abcdef", true), "");  // three bytes were held back by the last turn
  EXPECT_EQ(of("", true), "");
  EXPECT_NE(of("abcdefg", true), "");
}

TEST(CompletionCheck, HoldsTheSessionsNumber) {
  const std::vector<std::string> events = {chunk("abc", "\"length\""), usage(5, 3, 8, 7), "[DONE]"};
  EXPECT_EQ(verdict(events, {5, 3, true, true, 7}), "");
  EXPECT_NE(verdict(events, {5, 3, true, true, 8}), "");
}

TEST(CompletionCheck, HashesWhatDiffers) {
  const auto hash = [](const std::vector<std::string>& events) {
    CompletionCheck check({5, 3});
    for (const std::string& event : events) check.event(event);
    return check.hash();
  };
  const uint64_t one = hash({chunk("a"), chunk("bc", "\"length\"")});
  EXPECT_EQ(hash({chunk("abc"), chunk("", "\"length\"")}), one);  // cut elsewhere
  EXPECT_NE(hash({chunk("abd", "\"length\"")}), one);
  EXPECT_NE(hash({chunk("abc", "\"stop\"")}), one);
}

TEST(Statistics, Spreads) {
  std::vector<float> values;
  for (int i = 0; i <= 200; ++i) values.push_back(static_cast<float>(200 - i));
  const Spread spread = spread_of(values);
  EXPECT_EQ(spread.count, 201);
  EXPECT_EQ(spread.p50, 100);
  EXPECT_EQ(spread.p99, 198);
  EXPECT_EQ(spread.max, 200);
  EXPECT_EQ(spread_of({}).count, 0);
}

TEST(Statistics, CountsThePartOfATurnBeforeTheEnd) {
  const Throughput found = throughput({{0, 2, 10}, {2, 6, 20}, {5, 6, 40}}, 4);
  EXPECT_DOUBLE_EQ(found.turns, 1.5 / 4);
  EXPECT_DOUBLE_EQ(found.tokens, 20.0 / 4);
}

TEST(Statistics, AddsSamples) {
  Samples one, other;
  one.answers[1] = {7};
  one.errors["429"] = 2;
  other.answers[1] = {7, 8};
  other.answers[2] = {9};
  other.errors["429"] = 1;
  other.wrong_example = "x";
  one.add(std::move(other));
  EXPECT_EQ(one.distinct_answers(), 2);
  EXPECT_EQ(one.errors["429"], 3);
  EXPECT_EQ(one.wrong_example, "x");
}

TEST(Statistics, ReadsMetrics) {
  const std::string text = "# HELP a b\na_total 7\na{x=\"y\"} 3\na 4.5\nb 1e3";
  EXPECT_EQ(metric_value(text, "a"), 4.5);
  EXPECT_EQ(metric_value(text, "b"), 1000);
  EXPECT_FALSE(metric_value(text, "c"));
}

TEST(LoadResult, FindsWhatIsWrong) {
  LoadResult result;
  EXPECT_NE(result.finding(), "");  // nothing was answered
  result.samples.turns = {{0, 1, 3}};
  result.samples.answers[0] = {1};
  EXPECT_EQ(result.finding(), "");
  result.samples.answers[0].insert(2);
  EXPECT_NE(result.finding(), "");
  result.samples.answers[0].erase(2);
  result.samples.wrong = 1;
  EXPECT_NE(result.finding(), "");
}

}  // namespace
}  // namespace tarn::serve::load
