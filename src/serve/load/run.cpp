#include "serve/load/run.h"

#include <algorithm>

#include "base/json.h"

namespace tarn::serve::load {

const std::string& Run::key(int64_t index) const {
  static const std::string none;
  return options.keys.empty() ? none
                              : options.keys[static_cast<size_t>(index) % options.keys.size()];
}

bool Run::take() {
  const bool has_count = options.requests > 0;
  return !stopping && (!has_count || taken.fetch_add(1) < options.requests);
}

void Run::end_now() {
  double unset = 0;
  end.compare_exchange_strong(unset, now());
}

std::vector<int64_t> prompt_of(const Question& question, int64_t vocabulary) {
  constexpr int64_t kFirst = ' ', kCount = 95;
  const bool is_small = vocabulary > 0 && vocabulary < kFirst + kCount;
  const int64_t symbols = std::max<int64_t>(1, vocabulary - 1);  // the last may be the start token
  std::vector<int64_t> tokens(static_cast<size_t>(question.prompt_tokens));
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    const int64_t token = kFirst + (31 * i + 7 * (i / 13) + 17 * (question.number + 1)) % kCount;
    tokens[static_cast<size_t>(i)] = is_small ? token % symbols : token;
  }
  return tokens;
}

std::string body_of(const Question& question, const Facts& facts) {
  const auto tokens = prompt_of(question, facts.vocabulary);
  Json json;
  json.set("model", facts.model);
  json.set("prompt", Json::Array(tokens.begin(), tokens.end()));
  json.set("max_tokens", question.max_tokens);
  json.set("temperature", 0);
  json.set("stream", true);
  json.set("stream_options", Json::Object{{"include_usage", true}});
  if (!question.session.empty()) {
    json.set("session", question.session);
    json.set("if_seq", question.if_seq);
  }
  return json.dump();
}

Expected expected_of(const Question& question, const Facts& facts) {
  Expected expected;
  expected.prompt_tokens = question.prompt_tokens;
  expected.max_tokens = question.max_tokens;
  expected.counts_bytes = facts.counts_bytes;
  expected.in_session = !question.session.empty();
  if (expected.in_session) expected.seq = question.if_seq + 1;
  return expected;
}

}  // namespace tarn::serve::load
