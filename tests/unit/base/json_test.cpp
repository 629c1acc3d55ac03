#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/json_override.h"

namespace tarn {
namespace {

std::string error_of(const std::string& text, JsonLimits limits = {}) {
  const Result<Json> json = parse_json(text, "doc.json", limits);
  return json.ok() ? "" : json.error().to_string();
}

Json parsed(const std::string& text) {
  Result<Json> json = parse_json(text, "doc.json");
  EXPECT_TRUE(json.ok()) << text << ": " << (json.ok() ? "" : json.error().to_string());
  return json.ok() ? *json : Json("parse failed");
}

TEST(JsonParse, ReadsEveryKindOfValue) {
  const Json json =
      parsed(R"( {"a":null,"b":[true,false],"c":-7,"d":2.5,"e":"x\n\u00e9\ud83d\ude00"} )");
  EXPECT_TRUE(json.find("a")->is_null());
  EXPECT_EQ(*json.find("b"), Json(Json::Array{Json(true), Json(false)}));
  EXPECT_EQ(*json.find("c")->as_int(), -7);
  EXPECT_EQ(*json.find("d")->as_double(), 2.5);
  EXPECT_EQ(*json.find("e")->as_string(), "x\n\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(json.find("f"), nullptr);
  EXPECT_EQ(parsed("[]").as_array()->size(), 0u);
  EXPECT_EQ(parsed("\"\""), Json(""));
}

TEST(JsonParse, IntegersKeepAll64Bits) {
  EXPECT_EQ(*parsed("9223372036854775807").as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*parsed("-9223372036854775808").as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_NE(error_of("9223372036854775808").find("out of range"), std::string::npos);
  EXPECT_NE(error_of("-9223372036854775809").find("out of range"), std::string::npos);
  EXPECT_NE(error_of("99999999999999999999").find("out of range"), std::string::npos);
}

TEST(JsonParse, DoublesAreCorrectlyRounded) {
  for (const char* text :
       {"0.1", "1.7976931348623157e308", "2.2250738585072014e-308", "9007199254740993.0",
        "0.000000000000000000000000000000000000012345678901", "123456789012345678901234567890.5",
        "5e-324", "-1.5E+3"}) {
    EXPECT_EQ(*parsed(text).as_double(), std::strtod(text, nullptr)) << text;
  }
  EXPECT_EQ(*parsed("1e-400").as_double(), 0.0);
  EXPECT_NE(error_of("1e400").find("out of range"), std::string::npos);
  EXPECT_NE(error_of("[-1e400]").find("out of range"), std::string::npos);
  EXPECT_NE(error_of("1e99999999999").size(), 0u);
}

TEST(JsonParse, RejectsWhatIsNotStrictJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[1,]",
                           "{\"a\":1,}",
                           "{\"a\"}",
                           "01",
                           "+1",
                           ".5",
                           "1.",
                           "NaN",
                           "Infinity",
                           "nul",
                           "'a'",
                           "\"a",
                           "\"\x01\"",
                           "\"\\x\"",
                           "// c\n1",
                           "1 2",
                           "{} x",
                           "[1}",
                           "\"\xff\"",
                           "\"\xc0\x80\"",
                           "\"\xed\xa0\x80\"",
                           "\"\\ud800\"",
                           "\"\xf5\x80\x80\x80\""}) {
    const std::string error = error_of(text);
    EXPECT_EQ(error.rfind("doc.json: invalid JSON at line ", 0), 0u) << text << ": " << error;
  }
}

TEST(JsonParse, RejectsDuplicateKeysAtAnyDepth) {
  EXPECT_NE(error_of(R"({"a":1,"b":2,"a":3})").find("duplicate key \"a\""), std::string::npos);
  EXPECT_NE(error_of(R"([{"x":{"k":1,"\u006b":1}}])").find("duplicate key \"k\""),
            std::string::npos);
  EXPECT_EQ(error_of(R"([{"a":1},{"a":1}])"), "");
}

TEST(JsonParse, HoldsItsLimits) {
  const JsonLimits limits{.max_bytes = 20, .max_depth = 3, .max_values = 5};
  EXPECT_EQ(error_of("[[[1]]]", limits), "");
  EXPECT_NE(error_of("[[[[1]]]]", limits).find("deeper than 3"), std::string::npos);
  EXPECT_EQ(error_of("[1,2,3,4]", limits), "");
  EXPECT_NE(error_of("[1,2,3,4,5]", limits).find("too many values"), std::string::npos);
  EXPECT_NE(error_of(std::string(21, ' '), limits).find("at most 20"), std::string::npos);
  EXPECT_NE(error_of(std::string(1'000'000, '[')).find("deeper than 32"), std::string::npos);
}

TEST(JsonParse, NamesLineAndColumn) {
  EXPECT_NE(error_of("{\n  \"a\": x\n}").find("line 2, column 8"), std::string::npos)
      << error_of("{\n  \"a\": x\n}");
}

TEST(JsonDump, RoundTrips) {
  const double doubles[] = {
      0.0, -0.0, 1.0, -3.0, 0.1, 1e-5, 1e300, 5e-324, std::numeric_limits<double>::max()};
  for (double value : doubles) {
    const Json back = parsed(Json(value).dump());
    ASSERT_NE(back.as_double(), nullptr) << value;
    EXPECT_EQ(*back.as_double(), value);
    EXPECT_EQ(std::signbit(*back.as_double()), std::signbit(value));
  }
  Json json;
  json.set("text", "tab\t quote\" back\\ nul" + std::string(1, '\0') + "\x7f \xC3\xA9");
  json.set("list", Json::Array{1, -2.5, Json(), Json::Array{}, Json::Object{}});
  json.set("text2", true);
  EXPECT_EQ(parsed(json.dump()), json);
  EXPECT_EQ(parsed(json.dump(2)), json);
  json.set("text2", false);
  EXPECT_EQ(json.as_object()->size(), 3u);
  EXPECT_EQ(json.find("text2")->dump(), "false");
}

TEST(JsonDump, NeverWritesInvalidJson) {
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(Json("a\xff\xc3").dump(), "\"a\xEF\xBF\xBD\xEF\xBF\xBD\"");
  EXPECT_EQ(Json(Json::Array{1, 2}).dump(), "[1,2]");
  EXPECT_EQ(Json(Json::Object{{"a", 1}}).dump(1), "{\n \"a\": 1\n}");
}

TEST(JsonQuote, EscapesAndCuts) {
  EXPECT_EQ(json_quote("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(json_quote("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(json_quote("ab\xC3\xA9", 3), "\"ab...\"");
}

std::string reader_error(const std::string& text, void (*read)(JsonReader&)) {
  const Json json = parsed(text);
  JsonReader reader(json, "c.json");
  read(reader);
  const Status status = reader.finish();
  return status.ok() ? "" : status.error().to_string();
}

TEST(JsonReader, ReadsWhatIsThereAndFallsBack) {
  const Json json = parsed(R"({"i":3,"n":4,"x":0.5,"s":"b","t":true})");
  JsonReader reader(json, "c.json");
  EXPECT_EQ(reader.integer("i", 0, 9), 3);
  EXPECT_EQ(reader.integer("j", 0, 9, 7), 7);
  EXPECT_EQ(reader.number("n", 0, 9), 4.0);
  EXPECT_EQ(reader.number("x", 0, 1, 0.1), 0.5);
  EXPECT_EQ(reader.number("y", 0, 1, 0.1), 0.1);
  EXPECT_EQ(reader.choice("s", {"a", "b"}), 1u);
  EXPECT_EQ(reader.choice("r", {"a", "b"}, 0), 0u);
  EXPECT_EQ(reader.string("s"), "b");
  EXPECT_EQ(reader.string("q", "z"), "z");
  EXPECT_TRUE(reader.boolean("t", false));
  EXPECT_EQ(reader.optional("none"), nullptr);
  EXPECT_TRUE(reader.finish().ok());
  EXPECT_EQ(reader.path("i"), "c.json: i");
  EXPECT_EQ(JsonReader(json, "c.json: a[1]").path("i"), "c.json: a[1].i");
}

TEST(JsonReader, ErrorsNameKeyGotAndWanted) {
  EXPECT_EQ(reader_error("{}", [](JsonReader& r) { r.integer("i", 1, 5); }),
            "c.json: i: is missing");
  EXPECT_EQ(reader_error(R"({"i":7})", [](JsonReader& r) { r.integer("i", 1, 5); }),
            "c.json: i: must be an integer from 1 to 5, got 7");
  EXPECT_EQ(reader_error(R"({"i":2.5})", [](JsonReader& r) { r.integer("i", 1, 5, 2); }),
            "c.json: i: must be an integer from 1 to 5, got 2.5");
  EXPECT_EQ(reader_error(R"({"i":"x"})", [](JsonReader& r) { r.number("i", 0, 1); }),
            "c.json: i: must be a number from 0 to 1, got \"x\"");
  EXPECT_EQ(reader_error(R"({"i":[]})", [](JsonReader& r) { r.string("i"); }),
            "c.json: i: must be a string, got array");
  EXPECT_EQ(reader_error(R"({"i":"z"})",
                         [](JsonReader& r) {
                           r.choice("i", {"a", "b"});
                         }),
            "c.json: i: must be one of a, b, got \"z\"");
  EXPECT_EQ(reader_error(R"({"i":1})", [](JsonReader& r) { r.boolean("i", true); }),
            "c.json: i: must be true or false, got 1");
  EXPECT_EQ(reader_error(R"({"i":1,"k":1})", [](JsonReader& r) { r.integer("i", 0, 1); }),
            "c.json: unknown key \"k\"; known keys: i");
  EXPECT_EQ(reader_error("[]", [](JsonReader& r) { r.integer("i", 0, 1); }),
            "c.json: must be an object, got array");
  // All that is missing at once, and before what may follow from it.
  EXPECT_EQ(reader_error(R"({"j":-1})",
                         [](JsonReader& r) {
                           r.integer("i", 0, 1);
                           r.integer("j", 0, 1);
                           r.choice("k", {"a"});
                         }),
            "c.json: these keys are missing: i, k");
  // The first error wins.
  EXPECT_EQ(reader_error(R"({"i":-1,"j":-1})",
                         [](JsonReader& r) {
                           r.integer("i", 0, 1);
                           r.integer("j", 0, 1);
                         }),
            "c.json: i: must be an integer from 0 to 1, got -1");
}

TEST(JsonReader, KnowsWhatItWasAskedFor) {
  const Json json = parsed(R"({"i":3})");
  JsonReader reader(json, "c.json");
  reader.integer("i", 0, 9);
  reader.number("x", 0.5, 1.5, 1.0);
  reader.boolean("t", true);
  reader.choice("c", {"a", "b"}, 1);
  reader.string("s");
  reader.optional("o");
  const std::vector<JsonKey> wanted = {
      {"i", "integer", true, 0, 9, {}, {}},      {"x", "number", false, 0.5, 1.5, {}, 1.0},
      {"t", "boolean", false, {}, {}, {}, true}, {"c", "choice", false, {}, {}, {"a", "b"}, "b"},
      {"s", "string", true, {}, {}, {}, {}},     {"o", "value", false, {}, {}, {}, {}}};
  EXPECT_EQ(reader.keys(), wanted);
}

TEST(Override, TakesIndicesWithPointsAndInBrackets) {
  for (const char* path : {"layers.1.mixer.heads", "layers[1].mixer.heads"}) {
    Json json = parsed(R"({"layers":[{},{"mixer":{"heads":2}}]})");
    ASSERT_TRUE(apply_override(json, std::string(path) + "=7").ok()) << path;
    EXPECT_EQ(json, parsed(R"({"layers":[{},{"mixer":{"heads":7}}]})"));
  }
  Json nested = parsed(R"({"a":[[1,2],[3,4]]})");
  ASSERT_TRUE(apply_override(nested, "a[1][0]=9").ok());
  EXPECT_EQ(nested, parsed(R"({"a":[[1,2],[9,4]]})"));
  for (const char* bad : {"a[2][0]=1", "a[]=1", "a[-1]=1", "a[0]x.y=1"}) {
    EXPECT_FALSE(apply_override(nested, bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace tarn
