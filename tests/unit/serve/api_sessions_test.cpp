#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "report/png.h"
#include "serve/api/base64.h"
#include "unit/serve/api_fixture.h"

namespace tarn::serve::api {
namespace {

const std::string kText = "/v1/completions";
const std::string kSessions = "/v1/sessions";

Answered turn(Site& site, const std::string& session, const std::string& prompt,
              const std::string& extra = "", const std::string& key = "") {
  http::Request request = site.request("POST", kText,
                                       R"({"session":")" + session + R"(","prompt":")" + prompt +
                                           R"(","max_tokens":8)" + extra + "}");
  if (!key.empty()) request.headers.emplace_back("idempotency-key", key);
  return site.send(request);
}

TEST(ApiSessions, HoldWhatWasSaid) {
  Site site(text_model());
  const Answered made = site.post(kSessions, R"({"id":"s","seed":4,"ttl_seconds":60})");
  ASSERT_EQ(made.status, 201) << made.body;
  EXPECT_EQ(made.at("object"), Json("session"));
  EXPECT_EQ(made.at("seq"), Json(1));
  EXPECT_FALSE(made.at("expires_at").is_null());
  const Answered first = turn(site, "s", "ab");
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(first.at("tarn.session"), Json("s"));
  EXPECT_EQ(first.at("tarn.seq"), Json(2));
  EXPECT_EQ(first.at("tarn.saved"), Json(true));
  EXPECT_EQ(first.at("tarn.durability"), Json("memory"));
  EXPECT_EQ(first.at("tarn.tokens_evaluated"), Json(3));
  const Answered second = turn(site, "s", "c", R"(,"if_seq":2)");
  EXPECT_EQ(second.at("tarn.seq"), Json(3));
  EXPECT_EQ(second.at("tarn.tokens_evaluated"), Json(2)) << "the drawn token and the prompt";
  EXPECT_EQ(second.at("tarn.token_count"), Json(19));

  const Answered stale = turn(site, "s", "d", R"(,"if_seq":2)");
  EXPECT_EQ(stale.status, 412);
  EXPECT_EQ(stale.header("X-Should-Retry"), "false");
  EXPECT_EQ(stale.at("error.param"), Json("if_seq"));
  EXPECT_EQ(site.get(kSessions + "/s").at("token_count"), Json(19));

  // The same words after a rollback and in a fork are answered with the same ones.
  EXPECT_EQ(site.post(kSessions + "/s/fork", R"({"seq":2,"id":"t"})").status, 201);
  EXPECT_EQ(turn(site, "t", "c").at("choices"), second.at("choices"));
  const Answered rolled = site.post(kSessions + "/s/rollback", R"({"seq":2})");
  EXPECT_EQ(rolled.at("seq"), Json(4));
  EXPECT_EQ(rolled.at("token_count"), Json(10));
  EXPECT_EQ(turn(site, "s", "c").at("choices"), second.at("choices"));

  EXPECT_EQ(site.post(kSessions + "/s/pause", "").at("resident"), Json(false));
  EXPECT_EQ(site.post(kSessions + "/s/resume", "{}").at("resident"), Json(true));
  EXPECT_EQ(turn(site, "s", "").at("tarn.tokens_evaluated"), Json(1));
  EXPECT_EQ(site.send(site.request("DELETE", kSessions + "/s")).at("deleted"), Json(true));
  EXPECT_EQ(site.get(kSessions + "/s").status, 404);
  EXPECT_EQ(turn(site, "s", "x").status, 404);
}

TEST(ApiSessions, NameTheVersionThatIsNotKept) {
  Site site(text_model());
  site.post(kSessions, R"({"id":"s"})");
  for (const char* call : {"/s/fork", "/s/rollback"}) {
    const Answered answer = site.post(kSessions + call, R"({"seq":9})");
    EXPECT_EQ(answer.status, 404) << answer.body;
    EXPECT_EQ(answer.at("error.code"), Json("version_not_found"));
    EXPECT_EQ(answer.at("error.param"), Json("seq"));
  }
  EXPECT_EQ(site.post(kSessions + "/t/fork", R"({"seq":9})").at("error.code"),
            Json("session_not_found"));
}

TEST(ApiSessions, TakeNoUnknownQuery) {
  Site site(text_model());
  const Answered answer = site.get(kSessions + "?limit=2&after=b");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.at("error.param"), Json("after"));
  EXPECT_EQ(site.post(kText + "?stream=true", "{}").status, 400);
  EXPECT_EQ(site.get("/livez?probe=1").status, 200);
}

TEST(ApiSessions, AreListedPageByPage) {
  Site site(text_model());
  for (const char* id : {"a", "b", "c"}) {
    site.post(kSessions, std::string(R"({"id":")") + id + R"("})");
  }
  std::string seen, token;
  for (int page = 0; page < 5; ++page) {
    const Answered answer = site.get(kSessions + "?limit=2&page_token=" + token);
    const Json data = answer.at("data");
    for (const Json& session : *data.as_array()) {
      seen += *session.find("id")->as_string();
    }
    const Json next = answer.at("next_page_token");
    EXPECT_EQ(answer.at("has_more"), Json(!next.is_null()));
    if (next.is_null()) break;
    token = *next.as_string();
  }
  EXPECT_EQ(seen, "abc");
}

TEST(ApiSessions, AKeyAnswersTwiceAndActsOnce) {
  Site site(text_model());
  site.post(kSessions, R"({"id":"s","seed":4})");
  const Answered first = turn(site, "s", "ab", R"(,"if_seq":1)", "key-1");
  const Answered again = turn(site, "s", "ab", R"(,"if_seq":1)", "key-1");
  ASSERT_EQ(again.status, 200) << again.body;
  EXPECT_EQ(again.at("choices"), first.at("choices"));
  EXPECT_EQ(again.at("usage"), first.at("usage"));
  EXPECT_EQ(first.at("tarn.replayed"), Json(false));
  EXPECT_EQ(again.at("tarn.replayed"), Json(true));
  EXPECT_EQ(again.at("tarn.seq"), Json(2));
  const Answered streamed = turn(site, "s", "ab", R"(,"stream":true)", "key-1");
  std::string text;
  for (const Json& event : streamed.events()) {
    text += *at(event, "choices.0.text").as_string();
  }
  EXPECT_EQ(Json(text), first.at("choices.0.text"));
  EXPECT_EQ(site.get(kSessions + "/s").at("seq"), Json(2));
  const Answered other = turn(site, "s", "zz", "", "key-1");
  EXPECT_EQ(other.status, 422);
  EXPECT_EQ(other.at("error.param"), Json("idempotency_key"));
  const Answered long_key = turn(site, "s", "zz", "", std::string(300, 'k'));
  EXPECT_EQ(long_key.status, 400);
  http::Request two = site.request("POST", kText, R"({"session":"s","prompt":"zz"})");
  for (const char* name : {"Idempotency-Key", "idempotency-key"}) {
    two.headers.emplace_back(name, "k");
  }
  const Answered two_keys = site.send(two);
  EXPECT_EQ(two_keys.status, 400) << two_keys.body;
  EXPECT_EQ(two_keys.at("error.param"), Json("idempotency_key"));
  EXPECT_EQ(site.get(kSessions + "/s").at("seq"), Json(2));
}

TEST(ApiSessions, TakeOneTurnAtATime) {
  ApiOptions options;
  options.limits.max_tokens = 1'000'000'000;
  Site site(text_model(), options);
  site.post(kSessions, R"({"id":"s","seed":4})");
  const auto running = site.start(
      site.request("POST", kText, R"({"session":"s","max_tokens":1000000000,"stream":true})"));
  ASSERT_TRUE(running->wait_for_bytes());
  const Answered second = turn(site, "s", "x");
  EXPECT_EQ(second.status, 409);
  EXPECT_FALSE(second.header("Retry-After").empty());
  running->leave();
  EXPECT_TRUE(site.idle());
  // The turn that was left is undone.
  Answered after;
  for (int i = 0; i < 1000 && after.status != 200; ++i) after = turn(site, "s", "ab");
  EXPECT_EQ(after.at("tarn.seq"), Json(2));
  Site control(text_model());
  control.post(kSessions, R"({"id":"s","seed":4})");
  EXPECT_EQ(after.at("choices"), turn(control, "s", "ab").at("choices"));
}

TEST(ApiSessions, AreSavedWhenTheyAskForIt) {
  Site site(text_model());
  site.post(kSessions, R"({"id":"s","save":"manual"})");
  EXPECT_EQ(turn(site, "s", "a").at("tarn.saved"), Json(false));
  EXPECT_EQ(site.get(kSessions + "/s").at("unsaved"), Json(true));
  const Answered saved = site.post(kSessions + "/s/save", "");
  EXPECT_EQ(saved.at("seq"), Json(2));
  EXPECT_EQ(saved.at("unsaved"), Json(false));
}

TEST(ApiSessions, AChatGoesOnWithTheNewMessagesAlone) {
  const ModelPointer model = text_model();
  Site site(model);
  site.post(kSessions, R"({"id":"s","seed":4})");
  const auto chat = [&](const std::string& messages) {
    return site.post("/v1/chat/completions",
                     R"({"session":"s","max_tokens":4,"messages":[)" + messages + "]}");
  };
  const std::string first = "User: Hi\n\nAssistant:", second = "\n\nUser: On\n\nAssistant:";
  Alone alone(model, 4);
  alone.turn({first.begin(), first.end()}, 4, {});
  const Tokens drawn = alone.turn({second.begin(), second.end()}, 4, {});
  EXPECT_EQ(chat(R"({"role":"user","content":"Hi"})").at("choices.0.finish_reason"),
            Json("length"));
  ASSERT_EQ(site.post(kSessions + "/s/fork", R"({"id":"closed"})").status, 201);
  const Answered answer =
      chat(R"({"role":"assistant","content":""},{"role":"user","content":"On"})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  runtime::Utf8Stream stream;
  std::string text;
  for (const int32_t token : drawn) stream.push(static_cast<uint8_t>(token), &text);
  if (text.substr(0, 1) == " ") text.erase(0, 1);
  EXPECT_EQ(answer.at("choices.0.message.content"), Json(text));
  // The open answer is closed by itself, in a fork as well.
  const Answered closed = site.post(
      "/v1/chat/completions",
      R"({"session":"closed","max_tokens":4,"messages":[{"role":"user","content":"On"}]})");
  EXPECT_EQ(closed.at("choices"), answer.at("choices"));
  EXPECT_EQ(closed.at("tarn.token_count"), answer.at("tarn.token_count"));
}

TEST(ApiSessions, AChatBeginsBehindABlankLine) {
  Site site(text_model());
  const auto tokens_of_chat = [&](const std::string& text) {
    const std::string made = site.post(kSessions, "{}").at("id").as_string()->c_str();
    site.post(kText,
              R"({"max_tokens":0,"session":")" + made + R"(","prompt":)" + Json(text).dump() + "}");
    const Answered answer =
        site.post("/v1/chat/completions", R"({"max_tokens":1,"session":")" + made +
                                              R"(","messages":[{"role":"user","content":"x"}]})");
    return *answer.at("tarn.token_count").as_int() - static_cast<int64_t>(text.size());
  };
  const int64_t whole = tokens_of_chat("");
  EXPECT_EQ(tokens_of_chat("a"), whole + 2);
  EXPECT_EQ(tokens_of_chat("a\n"), whole + 1);
  EXPECT_EQ(tokens_of_chat("a\n\n"), whole);
  EXPECT_EQ(tokens_of_chat("a\n\n\n"), whole);
}

/// A folder that is removed again.
struct Folder {
  Folder() { TARN_CHECK(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string url() const { return "dir:" + path + "/store"; }
  std::string path = (std::filesystem::temp_directory_path() / "tarn-api-XXXXXX").string();
};

TEST(ApiSessions, OfAnotherModelAreRefused) {
  const Folder folder;
  Answered first;
  {
    Site site(text_model(), {}, {}, make_store(folder.url()));
    site.post(kSessions, R"({"id":"s","seed":4})");
    first = turn(site, "s", "ab");
  }
  {
    Site other(endless_model({linear()}), {}, {}, make_store(folder.url()));
    const Answered refused = other.post(kText, R"({"session":"s"})");
    EXPECT_EQ(refused.status, 422) << refused.body;
    EXPECT_EQ(refused.at("error.code"), Json("session_unusable"));
    EXPECT_EQ(other.post(kSessions + "/s/resume", "").status, 422);
    EXPECT_EQ(other.post(kText, R"({"max_tokens":3})").status, 200);
  }
  Site site(text_model(), {}, {}, make_store(folder.url()));
  EXPECT_EQ(turn(site, "s", "").at("tarn.tokens_evaluated"), Json(1));
}

TEST(ApiSessions, OfAnotherServerAreRefusedWithATime) {
  const Folder folder;
  ServiceOptions named;
  named.owner = "one";
  Site one(text_model(), {}, named, make_store(folder.url()));
  named.owner = "two";
  Site two(text_model(), {}, named, make_store(folder.url()));
  one.post(kSessions, R"({"id":"s","save":"manual"})");
  ASSERT_EQ(turn(one, "s", "ab").status, 200);
  const auto expect_held = [](const Answered& answer) {
    EXPECT_EQ(answer.status, 409) << answer.body;
    EXPECT_EQ(answer.at("error.param"), Json("session"));
    const std::string message = *answer.at("error.message").as_string();
    EXPECT_EQ(message.rfind("session s is held by another server for up to ", 0), 0u) << message;
    const int seconds = std::stoi("0" + answer.header("Retry-After"));
    EXPECT_GT(seconds, 10);
    EXPECT_LE(seconds, 30);
  };
  expect_held(turn(two, "s", "c"));
  for (const char* call : {"/s/save", "/s/pause", "/s/resume", "/s/fork"}) {
    expect_held(two.post(kSessions + call, "{}"));
  }
  expect_held(two.send(two.request("DELETE", kSessions + "/s")));
  EXPECT_EQ(one.post(kSessions + "/s/save", "").at("seq"), Json(2));
  EXPECT_EQ(turn(two, "s", "c").at("tarn.seq"), Json(2));
}

TEST(ApiSessions, AFailedFlushStopsThemAlone) {
  const Folder folder;
  std::atomic<bool> fails{false};
  StoreOptions options;
  options.sync_file = [&](int fd) {
    if (!fails) return fsync(fd);
    errno = EIO;
    return -1;
  };
  Site site(text_model(), {}, {}, make_store(folder.url(), options));
  site.post(kSessions, R"({"id":"s","seed":4})");
  const Answered before = turn(site, "s", "ab");
  fails = true;
  const Answered failed = turn(site, "s", "c");
  EXPECT_EQ(failed.status, 503) << failed.body;
  EXPECT_FALSE(failed.header("Retry-After").empty());
  const Answered after = turn(site, "s", "c");
  EXPECT_EQ(after.status, 503);
  EXPECT_EQ(after.at("error.code"), Json("store_read_only"));
  EXPECT_EQ(site.get("/readyz").status, 503);
  EXPECT_NE(site.get("/readyz").body.find("read-only"), std::string::npos);
  EXPECT_NE(site.get("/metrics").body.find("tarn_ready 0\n"), std::string::npos);
  EXPECT_EQ(site.get(kSessions + "/s").at("seq"), before.at("tarn.seq"));
  EXPECT_EQ(site.post(kText, R"({"max_tokens":3})").status, 200);
}

ModelPointer picture_model() {
  runtime::TinyOptions options;
  options.image = true;
  options.max_tokens = 12;
  return runtime::tiny_model({linear()}, options);
}

TEST(ApiImages, DrawTheRestOfAPicture) {
  const ModelPointer model = picture_model();  // one row of 12 pixels, 11 levels
  Site site(model);
  const std::string given = encode_base64(std::string("\0\xff\x80", 3));
  const std::string ask = R"("seed":3,"n":2,"prompt":"","prompt_pixels":")" + given + R"("})";
  const Answered answer = site.post("/v1/images/generations", "{" + ask);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.at("usage.output_tokens"), Json(18));
  const std::vector<Json> events =
      site.post("/v1/images/generations", R"({"stream":true,)" + ask).events();
  ASSERT_EQ(events.size(), 4u);
  for (int i = 0; i < 2; ++i) {
    Alone alone(model, static_cast<uint64_t>(3 + i));
    const Tokens drawn = alone.turn({0, 10, 5}, 9, {});
    const auto png =
        decode_base64(*answer.at("data." + std::to_string(i) + ".b64_json").as_string());
    ASSERT_TRUE(png.has_value());
    const auto picture = report::decode_png(*png, 1, "answer");
    ASSERT_TRUE(picture.ok());
    ASSERT_EQ(picture->pixels.size(), 12u);
    EXPECT_EQ(picture->pixels[1], 255);
    for (size_t pixel = 0; pixel < 9; ++pixel) {
      EXPECT_EQ(picture->pixels[3 + pixel], report::pixel_of_level(drawn[pixel], 11));
    }
    int rows = 0, ends = 0;
    for (const Json& event : events) {
      if (at(event, "index") != Json(i)) continue;
      if (at(event, "type") == Json("image_generation.row")) {
        ++rows;
        EXPECT_EQ(decode_base64(*at(event, "b64_pixels").as_string()),
                  std::string(picture->pixels.begin(), picture->pixels.end()));
      } else {
        ++ends;
        EXPECT_EQ(at(event, "b64_json"), answer.at("data." + std::to_string(i) + ".b64_json"));
      }
    }
    EXPECT_EQ(rows, 1);
    EXPECT_EQ(ends, 1);
  }
}

TEST(ApiImages, EndWithThePicture) {
  Site site(picture_model());
  site.post(kSessions, R"({"id":"s"})");
  const std::string images = "/v1/images/generations";
  EXPECT_EQ(site.post(images, R"({"session":"s"})").at("data.0.complete"), Json(true));
  for (const std::string& path : {images, kText}) {
    const Answered answer = site.post(path, R"({"session":"s"})");
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.at("error.message"), Json("session: the picture is complete"));
    EXPECT_EQ(answer.at("error.param"), Json("session"));
  }
  const Answered given = site.post(images, R"({"session":"s","prompt_pixels":[1]})");
  EXPECT_EQ(given.at("error.message"), Json("session: the picture is complete"));
  EXPECT_EQ(site.get(kSessions + "/s").at("seq"), Json(2));
}

TEST(ApiImages, RefuseWhatTheyCannotDraw) {
  Site site(picture_model());
  const auto param = [&](const std::string& body) {
    const Answered answer = site.post("/v1/images/generations", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.at("error.param");
  };
  EXPECT_EQ(param(R"({"prompt":"a cat"})"), Json("prompt"));
  EXPECT_EQ(param(R"({"size":"1024x1024"})"), Json("size"));
  EXPECT_EQ(param(R"({"response_format":"url"})"), Json("response_format"));
  EXPECT_EQ(param(R"({"prompt_pixels":"!!"})"), Json("prompt_pixels"));
  EXPECT_EQ(param(R"({"prompt_pixels":[256]})"), Json("prompt_pixels"));
  EXPECT_EQ(param(R"({"prompt_pixels":[0,0,0,0,0,0,0,0,0,0,0,0,0]})"), Json("prompt_pixels"));
  EXPECT_EQ(param(R"({"rows":2})"), Json("rows"));
  EXPECT_EQ(param(R"({"n":9})"), Json("n"));
  EXPECT_EQ(param(R"({"partial_images":2})"), Json("partial_images"));
  EXPECT_EQ(param(R"({"logprobs":true})"), Json("logprobs"));
  EXPECT_EQ(param(R"({"top_logprobs":2})"), Json("top_logprobs"));
  EXPECT_EQ(site.post("/v1/images/generations", R"({"size":"12x1"})").status, 200);
}

}  // namespace
}  // namespace tarn::serve::api
