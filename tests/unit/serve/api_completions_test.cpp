#include <string>
#include <vector>

#include "unit/serve/api_fixture.h"

namespace tarn::serve::api {
namespace {

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";

std::string text_at(const Json& json, const std::string& path) {
  const Json value = at(json, path);
  const std::string* text = value.as_string();
  return text != nullptr ? *text : "(" + std::string(value.type_name()) + ")";
}

/// The tokens that the engine draws after `prompt`, as the text of a turn without a session.
std::string drawn_text(const ModelPointer& model, const std::string& prompt, uint64_t seed,
                       int64_t count) {
  Alone alone(model, seed);
  const Tokens drawn = alone.turn({prompt.begin(), prompt.end()}, count, runtime::SamplerOptions());
  runtime::Utf8Stream stream;
  std::string text;
  for (const int32_t token : drawn) stream.push(static_cast<uint8_t>(token), &text);
  stream.flush(&text);
  return text;
}

TEST(ApiCompletions, AnswersAsTheModelDrawsAlone) {
  const ModelPointer model = text_model();
  Site site(model, {.model_name = "tiny"});
  const Answered answer =
      site.post(kCompletions, R"({"model":"tiny","prompt":"Hello","max_tokens":20,"seed":7})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.json();
  EXPECT_EQ(text_at(json, "choices.0.text"), drawn_text(model, "Hello", 7, 20));
  EXPECT_EQ(text_at(json, "object"), "text_completion");
  EXPECT_EQ(text_at(json, "model"), "tiny");
  EXPECT_EQ(text_at(json, "choices.0.finish_reason"), "length");
  EXPECT_TRUE(at(json, "choices.0.logprobs").is_null());
  EXPECT_EQ(at(json, "usage.prompt_tokens"), Json(5));
  EXPECT_EQ(at(json, "usage.completion_tokens"), Json(20));
  EXPECT_EQ(at(json, "usage.total_tokens"), Json(25));
  EXPECT_EQ(at(json, "tarn.tokens_evaluated"), Json(6));
  EXPECT_TRUE(at(json, "tarn.session").is_null());
}

TEST(ApiCompletions, StreamsTheSameText) {
  Site site(text_model());
  const std::string ask = R"("prompt":"abc","max_tokens":40,"seed":3})";
  const Answered whole = site.post(kCompletions, "{" + ask);
  const Answered stream =
      site.post(kCompletions, R"({"stream":true,"stream_options":{"include_usage":true},)" + ask);
  ASSERT_EQ(stream.status, 200);
  const std::vector<Json> events = stream.events();
  ASSERT_GT(events.size(), 3u);
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    text += text_at(events[i], "choices.0.text");
    EXPECT_EQ(at(events[i], "id"), at(events[0], "id"));
    EXPECT_EQ(text_at(events[i], "object"), "text_completion");
    EXPECT_NE(events[i].find("usage"), nullptr);
    EXPECT_TRUE(at(events[i], "usage").is_null());
    const bool last = i + 2 == events.size();
    EXPECT_EQ(at(events[i], "choices.0.finish_reason").is_null(), !last);
  }
  EXPECT_EQ(Json(text), whole.at("choices.0.text"));
  EXPECT_EQ(at(events.back(), "choices"), Json(Json::Array()));
  EXPECT_EQ(at(events.back(), "usage"), whole.at("usage"));
  EXPECT_EQ(at(events.back(), "tarn.tokens_evaluated"), Json(4));
  for (const Json& event : site.post(kCompletions, R"({"stream":true,)" + ask).events()) {
    EXPECT_EQ(event.find("usage"), nullptr) << "usage that nobody asked for";
    EXPECT_NE(at(event, "choices.0"), Json());
  }
}

TEST(ApiCompletions, NSequencesAreThoseOfTheNextSeeds) {
  Site site(text_model());
  const Answered three =
      site.post(kCompletions, R"({"prompt":"xy","max_tokens":16,"seed":5,"n":3})");
  const Answered many =
      site.post(kCompletions, R"({"prompt":["xy","z"],"max_tokens":16,"seed":5,"n":2})");
  EXPECT_EQ(three.at("usage.prompt_tokens"), Json(2));
  EXPECT_EQ(three.at("usage.completion_tokens"), Json(48));
  for (int i = 0; i < 3; ++i) {
    const std::string number = std::to_string(i);
    const Answered one = site.post(
        kCompletions, R"({"prompt":"xy","max_tokens":16,"seed":)" + std::to_string(5 + i) + "}");
    EXPECT_EQ(three.at("choices." + number + ".text"), one.at("choices.0.text"));
    EXPECT_EQ(three.at("choices." + number + ".index"), Json(i));
  }
  EXPECT_EQ(many.at("choices.1.text"), three.at("choices.1.text"));
  const Answered other = site.post(kCompletions, R"({"prompt":"z","max_tokens":16,"seed":7})");
  EXPECT_EQ(many.at("choices.2.text"), other.at("choices.0.text"));
}

TEST(ApiCompletions, EchoAndStop) {
  const ModelPointer model = text_model();
  Site site(model);
  const std::string text = drawn_text(model, "Hi", 11, 60);
  std::string stop;
  for (size_t i = 20; i < text.size() && stop.empty(); ++i) {
    // A printable character that has not come before.
    if (text[i] > ' ' && text[i] < 0x7f && text.find(text[i]) == i) stop = text[i];
  }
  ASSERT_FALSE(stop.empty());
  Json body = Json::Object{{"prompt", "Hi"},
                           {"seed", 11},
                           {"max_tokens", 60},
                           {"echo", true},
                           {"stop", Json::Array{"not there at all", stop}}};
  const Answered answer = site.post(kCompletions, body.dump());
  EXPECT_EQ(answer.at("choices.0.text"), Json("Hi" + text.substr(0, text.find(stop))));
  EXPECT_EQ(answer.at("choices.0.finish_reason"), Json("stop"));
  body.set("stream", true);
  std::string streamed;
  for (const Json& event : site.post(kCompletions, body.dump()).events()) {
    streamed += text_at(event, "choices.0.text");
  }
  EXPECT_EQ(Json(streamed), answer.at("choices.0.text"));
}

TEST(ApiCompletions, TemperatureZeroAndTopPZeroAreGreedy) {
  Site site(text_model());
  const auto text = [&](const std::string& options) {
    return site.post(kCompletions, R"({"prompt":"Q","max_tokens":12)" + options + "}")
        .at("choices.0.text");
  };
  const Json greedy = text(R"(,"temperature":0,"seed":1)");
  EXPECT_EQ(text(R"(,"temperature":0.0,"seed":2)"), greedy);
  EXPECT_EQ(text(R"(,"top_p":0,"seed":3)"), greedy);
  EXPECT_EQ(text(R"(,"top_k":1,"seed":4)"), greedy);
  EXPECT_NE(text(R"(,"seed":1)"), greedy);
  // Without a seed they differ, and null is as good as nothing.
  EXPECT_NE(text(R"(,"seed":null,"stop":null)"), text(""));
}

TEST(ApiCompletions, WhateverBytesAModelDrawsTheAnswerIsUtf8) {
  Site site(text_model());
  int replaced = 0;
  for (int seed = 0; seed < 12; ++seed) {
    const std::string ask =
        R"("temperature":100,"max_tokens":50,"n":8,"seed":)" + std::to_string(seed * 100) + "}";
    const Answered whole = site.post(kCompletions, "{" + ask);
    ASSERT_EQ(whole.status, 200);
    std::vector<std::string> texts(8);
    for (const Json& event : site.post(kCompletions, R"({"stream":true,)" + ask).events()) {
      texts[static_cast<size_t>(*at(event, "choices.0.index").as_int())] +=
          text_at(event, "choices.0.text");
    }
    for (int i = 0; i < 8; ++i) {
      const std::string text = text_at(whole.json(), "choices." + std::to_string(i) + ".text");
      EXPECT_EQ(texts[static_cast<size_t>(i)], text);
      replaced += text.find("\xEF\xBF\xBD") != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(replaced, 50);
}

TEST(ApiCompletions, AnUnfinishedCharacterIsToldWithoutASession) {
  const ModelPointer model = text_model();
  Site site(model);
  uint64_t seed = 0;
  const auto begins_a_character = [&] {
    const int32_t token = Alone(model, seed).turn({'a'}, 1, {})[0];
    return token >= 0xc2 && token <= 0xf4;
  };
  while (!begins_a_character()) ++seed;
  const std::string ask = R"("prompt":"a","max_tokens":1,"seed":)" + std::to_string(seed);
  EXPECT_EQ(site.post(kCompletions, "{" + ask + "}").at("choices.0.text"), Json("\uFFFD"));
  const auto events = site.post(kCompletions, R"({"stream":true,)" + ask + "}").events();
  EXPECT_EQ(text_at(events.front(), "choices.0.text"), "\uFFFD");
  // In a session it waits for the next turn.
  site.post("/v1/sessions", R"({"id":"s"})");
  EXPECT_EQ(site.post(kCompletions, R"({"session":"s",)" + ask + "}").at("choices.0.text"),
            Json(""));
}

TEST(ApiCompletions, SamplersNameTheirWholeRange) {
  Site site(text_model());
  for (const char* value : {"-1", "0.0001", "101"}) {
    const Answered answer =
        site.post(kCompletions, std::string(R"({"temperature":)") + value + "}");
    EXPECT_EQ(answer.status, 400);
    EXPECT_EQ(text_at(answer.json(), "error.message")
                  .rfind("temperature: must be 0 (always the likeliest) or a number from 0.001 to "
                         "100, got ",
                         0),
              0u)
        << answer.body;
  }
}

TEST(ApiCompletions, ModelsOverTokensTellNumbers) {
  const ModelPointer model = endless_model({linear()});
  Site site(model);
  Alone alone(model, 9);
  const Tokens drawn = alone.turn({1, 2, 3}, 6, {});
  const Answered answer =
      site.post(kCompletions, R"({"prompt":[1,2,3],"max_tokens":6,"seed":9,"echo":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::string text = "1 2 3";
  Json::Array tokens{1, 2, 3};
  for (const int32_t token : drawn) {
    text += " " + std::to_string(token);
    tokens.push_back(token);
  }
  EXPECT_EQ(answer.at("choices.0.text"), Json(text));
  EXPECT_EQ(answer.at("choices.0.tokens"), Json(tokens));
  std::string streamed;
  Json::Array told;
  for (const Json& event :
       site.post(kCompletions,
                 R"({"prompt":[1,2,3],"max_tokens":6,"seed":9,"echo":true,"stream":true})")
           .events()) {
    streamed += text_at(event, "choices.0.text");
    const Json piece = at(event, "choices.0.tokens");
    if (const Json::Array* list = piece.as_array()) {
      told.insert(told.end(), list->begin(), list->end());
    }
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(told, tokens);
  EXPECT_EQ(site.post(kCompletions, R"({"prompt":"abc"})").at("error.param"), Json("prompt"));
  EXPECT_EQ(site.post(kChat, R"({"messages":[{"role":"user","content":"x"}]})").status, 400);
}

TEST(ApiCompletions, ASequenceEndsWhereTheModelDoes) {
  Site site(runtime::tiny_model({linear()}));  // 96 tokens at most
  Json::Array prompt(95, Json(1));
  const Answered full =
      site.post(kCompletions, Json(Json::Object{{"prompt", prompt}, {"max_tokens", 50}}).dump());
  EXPECT_EQ(full.at("usage.completion_tokens"), Json(1));
  EXPECT_EQ(full.at("choices.0.finish_reason"), Json("length"));
  prompt.insert(prompt.end(), 2, Json(1));
  const Answered over = site.post(kCompletions, Json(Json::Object{{"prompt", prompt}}).dump());
  EXPECT_EQ(over.status, 400);
  EXPECT_EQ(over.at("error.param"), Json("prompt"));
}

TEST(ApiChat, RendersTheTemplateAndTellsRoles) {
  const ModelPointer model = text_model();
  Site site(model);
  const std::string rendered =
      "System: be\nbrief\n\nUser: Hi there\n\nAssistant: Yes?\n\n"
      "User: go\n\nAssistant:";
  const std::string messages =
      R"("messages":[{"role":"developer","content":"\nbe\r\n\r\nbrief\n"},
        {"role":"user","content":[{"type":"text","text":"Hi "},{"type":"text","text":"there"}]},
        {"role":"assistant","content":"Yes?","refusal":null,"tool_calls":[]},
        {"role":"user","content":"go"}],"seed":21,"max_completion_tokens":30})";
  const Answered answer = site.post(kChat, "{" + messages);
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::string expected = drawn_text(model, rendered, 21, 30);
  const bool stopped = expected.find("\n\n") != std::string::npos;
  expected.resize(std::min(expected.size(), expected.find("\n\n")));
  if (!expected.empty() && expected.front() == ' ') expected.erase(0, 1);
  EXPECT_EQ(answer.at("choices.0.message.content"), Json(expected));
  EXPECT_EQ(answer.at("choices.0.message.role"), Json("assistant"));
  EXPECT_EQ(answer.at("choices.0.finish_reason"), Json(stopped ? "stop" : "length"));
  EXPECT_EQ(answer.at("object"), Json("chat.completion"));
  EXPECT_EQ(answer.at("usage.prompt_tokens"), Json(static_cast<int64_t>(rendered.size())));

  const std::vector<Json> events = site.post(kChat, R"({"stream":true,)" + messages).events();
  EXPECT_EQ(at(events.front(), "choices.0.delta.role"), Json("assistant"));
  EXPECT_EQ(at(events.front(), "choices.0.delta.content"), Json(""));
  EXPECT_EQ(at(events.back(), "choices.0.delta"), Json(Json::Object()));
  std::string streamed;
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    EXPECT_TRUE(at(events[i], "choices.0.delta.role").is_null());
    EXPECT_EQ(text_at(events[i], "object"), "chat.completion.chunk");
    streamed += text_at(events[i], "choices.0.delta.content");
  }
  EXPECT_EQ(streamed, expected);
}

TEST(ApiStream, AClientThatGoesEndsItsTurns) {
  ApiOptions options;
  options.limits.max_tokens = 1'000'000'000;
  Site site(text_model(), options);
  const auto& cancelled =
      site.service().engine_metrics().finished[static_cast<size_t>(FinishReason::kCancelled)];
  const auto long_turn = [&](const std::string& extra) {
    return site.request("POST", kCompletions,
                        R"({"prompt":"a","max_tokens":1000000000,)" + extra + "}");
  };
  const auto stream = site.start(long_turn(R"("stream":true,"n":3)"));
  ASSERT_TRUE(stream->wait_for_bytes());
  stream->leave();
  EXPECT_TRUE(site.idle());
  EXPECT_EQ(cancelled, 3);

  const auto whole = site.start(long_turn(R"("n":2)"));
  whole->leave();
  EXPECT_TRUE(site.idle());
  EXPECT_EQ(cancelled, 5);

  const auto slow = std::make_shared<FakeExchange>();
  slow->refuses_writes = true;
  site.api().handle(long_turn(R"("stream":true)"), slow);
  EXPECT_TRUE(site.idle());
  EXPECT_EQ(cancelled, 6);

  const auto gone_before = std::make_shared<FakeExchange>();
  gone_before->leave();
  site.api().handle(long_turn(R"("stream":true)"), gone_before);
  EXPECT_TRUE(site.idle());
  EXPECT_EQ(cancelled, 7);
}

TEST(ApiStream, AFullQueueAndADrainAreSaidBeforeTheStream) {
  ApiOptions options;
  options.limits.max_tokens = 1'000'000'000;
  ServiceOptions service;
  service.engine.max_running = 1;
  service.engine.max_queued_requests = 1;
  Site site(text_model(), options, service);
  const auto ask = [&] {
    return site.request("POST", kCompletions, R"({"stream":true,"max_tokens":1000000000})");
  };
  const auto running = site.start(ask());
  while (site.service().engine_metrics().running == 0) std::this_thread::yield();
  const auto waiting = site.start(ask());
  const Answered full = site.send(ask());
  EXPECT_EQ(full.status, 429);
  EXPECT_GE(std::stoi(full.header("Retry-After")), 1);
  EXPECT_EQ(full.at("error.code"), Json("overloaded"));

  site.service().drain(Clock::now());
  EXPECT_TRUE(running->wait());
  EXPECT_NE(running->reply.body.find(R"(data: {"error":)"), std::string::npos);
  EXPECT_EQ(running->reply.body.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(waiting->wait());
  const Answered late = site.send(ask());
  EXPECT_EQ(late.status, 503);
  EXPECT_FALSE(late.header("Retry-After").empty());
  EXPECT_EQ(site.get("/readyz").status, 503);
  EXPECT_NE(site.get("/readyz").body.find("shutting down"), std::string::npos);
  EXPECT_EQ(site.get("/livez").status, 200);
}

}  // namespace
}  // namespace tarn::serve::api
