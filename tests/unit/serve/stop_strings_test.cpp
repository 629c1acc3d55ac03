#include "serve/stop_strings.h"

#include "unit/serve/engine_fixture.h"

namespace tarn::serve {
namespace {

TEST(StopStrings, FoundWhereverTheTextIsCut) {
  const std::string text = "abcabdabcabcd and more";
  const std::vector<std::vector<std::string>> sets = {
      {"abcabcd"}, {"x", "cabd"},   {"d"},          {" and", "d a"},
      {"never"},   {"abca", "abc"}, {"bdab", "da"}, {"da", "a d", "cabda"}};
  const std::vector<std::pair<std::string, int>> wanted = {
      {"abcabd", 0}, {"ab", 1}, {"abcab", 0}, {"abcabdabcabc", 1},
      {text, -1},    {"", 1},   {"abcab", 1}, {"ab", 2}};
  for (size_t s = 0; s < sets.size(); ++s) {
    for (size_t piece = 1; piece <= text.size(); ++piece) {
      StopStrings stop(sets[s]);
      std::string out;
      bool found = false;
      for (size_t at = 0; at < text.size() && !found; at += piece) {
        found = stop.push(std::string_view(text).substr(at, piece), &out);
      }
      if (!found) stop.flush(&out);
      EXPECT_EQ(out, wanted[s].first) << s << " " << piece;
      EXPECT_EQ(stop.found(), wanted[s].second) << s << " " << piece;
    }
  }
}

TEST(StopStrings, HoldsBackNoMoreThanCouldMatch) {
  StopStrings stop({"END", "NO\n"});
  std::string out;
  stop.push("some E", &out);
  EXPECT_EQ(out, "some ");
  stop.push("N", &out);
  EXPECT_EQ(out, "some ");  // "EN", and "N" of the other
  stop.push("O", &out);
  EXPECT_EQ(out, "some E");
  stop.push("!", &out);
  EXPECT_EQ(out, "some ENO!");
}

TEST(StopStrings, AreChecked) {
  EXPECT_TRUE(validate_stop_strings({"a", "é", std::string(256, 'x'), "b"}).ok());
  EXPECT_FALSE(validate_stop_strings({"a", "b", "c", "d", "e"}).ok());
  EXPECT_FALSE(validate_stop_strings({""}).ok());
  EXPECT_FALSE(validate_stop_strings({std::string(257, 'x')}).ok());
  EXPECT_FALSE(validate_stop_strings({"\xC3"}).ok());
}

TEST(StopStrings, EndATurnAndTheSessionKeepsAllItsTokens) {
  const auto model = text_model();
  const auto engine = make_engine(model);
  Request request;
  request.max_tokens = 400;
  request.seed = 4;
  const Record whole = play(*engine, request);
  ASSERT_EQ(whole.tokens.size(), 400);
  // Four characters from the middle of what comes: they stretch over several tokens.
  std::string stop = whole.text.substr(200, 12);
  while ((stop.front() & 0xC0) == 0x80) stop.erase(0, 1);
  while (!validate_stop_strings({stop}).ok()) stop.pop_back();
  ASSERT_GT(stop.size(), 4);
  const size_t at = whole.text.find(stop);

  ASSERT_TRUE(engine->sessions().create("a", 4).ok());
  request.session = "a";
  request.seed.reset();
  request.stop = {"never in it", stop};
  const Record stopped = play(*engine, request);
  EXPECT_EQ(stopped.end.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.end.stop_string, 1);
  EXPECT_EQ(stopped.text, whole.text.substr(0, at));
  const auto count = static_cast<int64_t>(stopped.tokens.size());
  EXPECT_EQ(stopped.tokens, Tokens(whole.tokens.begin(), whole.tokens.begin() + count));
  EXPECT_EQ(engine->sessions().info("a")->token_count, count);
  Alone alone(model, 4);
  alone.turn({}, count, {});
  EXPECT_EQ(snapshot_of(*engine, "a"), alone.snapshot());
}

TEST(StopStrings, TextOfATurnThatEndsByLengthIsWhole) {
  const auto engine = make_engine(text_model());
  Request request;
  request.seed = 4;
  request.max_tokens = 50;
  const std::string text = play(*engine, request).text;
  size_t last = text.size() - 1;
  while ((text[last] & 0xC0) == 0x80) --last;
  request.stop = {text.substr(last) + " never"};
  EXPECT_EQ(play(*engine, request).text, text);
}

TEST(StopStrings, ACharacterGoesOnInTheNextTurnUnlessAPromptComesBetween) {
  const auto engine = make_engine(text_model());
  Request request;
  request.max_tokens = 300;
  request.seed = 9;
  const std::string whole = play(*engine, request).text;
  ASSERT_TRUE(engine->sessions().create("a", 9).ok());
  request.session = "a";
  request.seed.reset();
  request.max_tokens = 1;
  std::string text;
  for (int i = 0; i < 300; ++i) text += play(*engine, request).text;
  EXPECT_EQ(text, whole);
}

}  // namespace
}  // namespace tarn::serve
