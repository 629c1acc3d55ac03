#include "runtime/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace tarn::runtime {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string feed(std::string_view bytes) {
  Utf8Stream stream;
  std::string out;
  for (const char byte : bytes) stream.push(static_cast<uint8_t>(byte), &out);
  stream.flush(&out);
  return out;
}

TEST(Utf8Stream, ValidTextPassesUnchanged) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\x7F\xED\x9F\xBF\xF4\x8F\xBF\xBF";
  EXPECT_EQ(feed(text), text);
}

TEST(Utf8Stream, CharactersAreCounted) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80" + kBad + "b"), 6);
}

TEST(Utf8Stream, HoldsCharactersBackUntilComplete) {
  Utf8Stream stream;
  std::string out;
  stream.push(0xE2, &out);
  stream.push(0x82, &out);
  EXPECT_EQ(out, "");
  EXPECT_EQ(stream.pending(), "\xE2\x82");
  stream.push(0xAC, &out);
  EXPECT_EQ(out, "\xE2\x82\xAC");
  EXPECT_EQ(stream.pending(), "");
}

TEST(Utf8Stream, BrokenPrefixesBecomeOneReplacementEach) {
  EXPECT_EQ(feed("\x80"), kBad);
  EXPECT_EQ(feed("\xC0\x80"), kBad + kBad);             // overlong
  EXPECT_EQ(feed("\xE0\x80\x80"), kBad + kBad + kBad);  // overlong
  EXPECT_EQ(feed("\xED\xA0\x80"), kBad + kBad + kBad);  // surrogate
  EXPECT_EQ(feed("\xF4\x90\x80\x80"), kBad + kBad + kBad + kBad);
  EXPECT_EQ(feed("\xF5"), kBad);
  EXPECT_EQ(feed("\xE2\x82"
                 "a"),
            kBad + "a");
  EXPECT_EQ(feed("\xE2\x82\xE2\x82\xAC"), kBad + "\xE2\x82\xAC");
  EXPECT_EQ(feed("\xF0\x9F\x98"), kBad);
}

TEST(Utf8Stream, PendingBytesRoundTripAndOthersAreRefused) {
  for (const std::string good : {"", "\xC3", "\xE2", "\xE2\x82", "\xF0\x9F", "\xF0\x9F\x98"}) {
    Utf8Stream stream;
    EXPECT_TRUE(stream.set_pending(good));
    EXPECT_EQ(stream.pending(), good);
  }
  for (const std::string bad :
       {"a", "\x80", "\xC3\xA9", "\xE2\x41", "\xED\xA0", "\xF0\x9F\x98\x80", "\xFF"}) {
    Utf8Stream stream;
    EXPECT_TRUE(stream.set_pending("\xE2"));
    EXPECT_FALSE(stream.set_pending(bad));
    EXPECT_EQ(stream.pending(), "\xE2");
  }
}

}  // namespace
}  // namespace tarn::runtime
