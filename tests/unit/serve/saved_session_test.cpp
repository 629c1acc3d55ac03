// docs/formats/session.md: what is written is read, anything else is refused.
#include "serve/service/saved_session.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/frame.h"

namespace tarn::serve {
namespace {

KeyedResult result(const std::string& key) {
  KeyedResult result;
  result.key = key;
  result.request.fill(7);
  result.ended_ms = 1'700'000'000'000;
  result.seq = 5;
  result.reason = FinishReason::kStop;
  result.stop_string = 1;
  result.tokens_evaluated = 3;
  result.token_count = 40;
  result.tokens = {104, 195, 164, 33};
  result.text_bytes = {1, 0, 2, 0};
  result.text = "h\xc3\xa4";
  return result;
}

SavedSession sample() {
  SavedSession session;
  session.id = "a-1";
  session.policy = SavePolicy::kManual;
  session.missing_breaks = 1;
  session.results = {result("first key"), result("2")};
  session.results[1].reason = FinishReason::kLength;
  session.results[1].stop_string = -1;
  session.results[1].log_prob_counts = {1, 0, 2, 0};
  session.results[1].log_probs = {{{{104, -0.25}, {{104, -0.25}, {7, -3.5}}}, 0},
                                  {{{195, -1.0 / 3}, {}}, 0},
                                  {{{164, -2.0}, {{0, -1.0}}}, 2}};
  session.snapshot = "what a snapshot says";
  return session;
}

TEST(SavedSession, RoundTrip) {
  const std::string bytes = encode_saved_session(sample());
  const auto read = parse_saved_session(bytes, "test");
  ASSERT_TRUE(read.ok()) << read.error().to_string();
  EXPECT_EQ(read->id, "a-1");
  EXPECT_EQ(read->policy, SavePolicy::kManual);
  EXPECT_EQ(read->missing_breaks, 1);
  EXPECT_EQ(read->snapshot, "what a snapshot says");
  ASSERT_EQ(read->results.size(), 2);
  const KeyedResult& first = read->results[0];
  EXPECT_EQ(first.key, "first key");
  EXPECT_EQ(first.request, sample().results[0].request);
  EXPECT_EQ(first.ended_ms, 1'700'000'000'000);
  EXPECT_EQ(first.seq, 5);
  EXPECT_EQ(first.reason, FinishReason::kStop);
  EXPECT_EQ(first.stop_string, 1);
  EXPECT_EQ(first.tokens_evaluated, 3);
  EXPECT_EQ(first.token_count, 40);
  EXPECT_EQ(first.tokens, sample().results[0].tokens);
  EXPECT_EQ(first.text_bytes, sample().results[0].text_bytes);
  EXPECT_EQ(first.text, "h\xc3\xa4");
  EXPECT_TRUE(first.log_prob_counts.empty());
  EXPECT_EQ(read->results[1].stop_string, -1);
  EXPECT_EQ(read->results[1].log_prob_counts, sample().results[1].log_prob_counts);
  EXPECT_EQ(read->results[1].log_probs, sample().results[1].log_probs);
  EXPECT_EQ(encode_saved_session(*read), bytes);
}

TEST(SavedSession, EveryCutAndEveryFlippedByteIsFound) {
  const std::string bytes = encode_saved_session(sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(parse_saved_session(bytes.substr(0, size), "test").ok()) << size;
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string flipped = bytes;
    flipped[i] ^= 0x10;
    EXPECT_FALSE(parse_saved_session(flipped, "test").ok()) << i;
  }
}

TEST(SavedSession, RulesHoldBehindRightChecksums) {
  const auto refused = [](const std::function<void(SavedSession*)>& change) {
    SavedSession session = sample();
    change(&session);
    const auto read = parse_saved_session(encode_saved_session(session), "test");
    return !read.ok() && read.error().code == ErrorCode::kCorrupt;
  };
  using S = SavedSession;
  EXPECT_FALSE(refused([](S*) {}));
  EXPECT_TRUE(refused([](S* s) { s->id = ""; }));
  EXPECT_TRUE(refused([](S* s) { s->id = "a/b"; }));
  EXPECT_TRUE(refused([](S* s) { s->policy = static_cast<SavePolicy>(2); }));
  EXPECT_TRUE(refused([](S* s) { s->missing_breaks = 3; }));
  EXPECT_TRUE(refused([](S* s) { s->results[1].key = s->results[0].key; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].key = ""; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].key = "a\n"; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].reason = FinishReason::kCancelled; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].reason = static_cast<FinishReason>(77); }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].stop_string = -1; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].stop_string = 4; }));
  EXPECT_TRUE(refused([](S* s) { s->results[1].stop_string = 0; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].seq = 0; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].ended_ms = -1; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].tokens_evaluated = -1; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].token_count = 3; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].tokens[1] = -1; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].text_bytes = {1, 0, 1, 0}; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].text_bytes = {1, 1, 1, 0}; }));  // cuts a character
  EXPECT_TRUE(refused([](S* s) { s->results[0].text = "h\xc3\x28"; }));
  EXPECT_TRUE(refused([](S* s) { s->results[0].text_bytes[3] = 0xffffffff; }));
  EXPECT_TRUE(refused([](S* s) { s->results[1].log_prob_counts[3] = 1; }));
  EXPECT_TRUE(refused([](S* s) { s->results[1].log_prob_counts[3] = 2; }));
  EXPECT_TRUE(refused([](S* s) { s->results[1].log_prob_counts = {0, 1, 1, 0}; }));
  EXPECT_TRUE(refused([](S* s) { s->results[1].log_probs[2].text_at = 3; }));
  EXPECT_TRUE(refused([](S* s) { s->results[1].log_probs[0].of.likeliest[1].token = -1; }));
  EXPECT_TRUE(refused([](S* s) {  // of a turn without tokens
    s->results[1] = result("2");
    s->results[1].tokens = {};
    s->results[1].text_bytes = {};
    s->results[1].text = {};
    s->results[1].log_prob_counts = {0};
  }));
}

TEST(SavedSession, ALengthCannotAskForMemory) {
  // 4 billion tokens in a header of a few bytes, under right checksums.
  std::string bytes = begin_frame({"TARNTURN", 1, "saved session"});
  for (const char c : {0, 1, 0, 0, 1, 0, 0, 0}) put(&bytes, c);
  bytes += "a";
  for (const char c : {1, 1, 0, 0, -1, -1, -1, -1}) put(&bytes, c);
  bytes += std::string(56, '\1');
  finish_frame(&bytes, bytes.size());
  EXPECT_FALSE(parse_saved_session(bytes, "test").ok());
}

TEST(SavedSession, RequestsDifferInWhatChangesTheirAnswer) {
  Request request;
  request.prompt = {1, 2};
  request.max_tokens = 5;
  const RequestHash hash = hash_request(request);
  const auto differs = [&](const std::function<void(Request*)>& change) {
    Request other = request;
    change(&other);
    return hash_request(other) != hash;
  };
  using R = Request;
  EXPECT_TRUE(differs([](R* r) { r->prompt = {1, 2, 3}; }));
  EXPECT_TRUE(differs([](R* r) { r->prompt = {2, 1}; }));
  EXPECT_TRUE(differs([](R* r) { r->max_tokens = 6; }));
  EXPECT_TRUE(differs([](R* r) { r->seed = 0; }));
  EXPECT_TRUE(differs([](R* r) { r->log_probs = 0; }));
  EXPECT_TRUE(differs([](R* r) { r->stop = {""}; }));
  EXPECT_TRUE(differs([](R* r) { r->sampler.greedy = true; }));
  EXPECT_TRUE(differs([](R* r) { r->sampler.temperature = 0.5f; }));
  EXPECT_TRUE(differs([](R* r) { r->sampler.top_k = 1; }));
  EXPECT_TRUE(differs([](R* r) { r->sampler.top_p = 0.5f; }));
  EXPECT_FALSE(differs([](R* r) { r->session = "b"; }));
  EXPECT_FALSE(differs([](R* r) { r->if_tokens = 3; }));
}

}  // namespace
}  // namespace tarn::serve
