// Log probabilities of drawn tokens: those of the model's own outputs, told with their text.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "unit/serve/api_fixture.h"

namespace tarn::serve::api {
namespace {

constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kChat = "/v1/chat/completions";

/// What a model draws, and the logarithm of the softmax of each output, plainly.
struct Reference {
  Tokens drawn;
  std::vector<std::vector<double>> log_probs;
};

std::vector<double> log_softmax(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - largest - std::log(sum));
  return result;
}

void draw(Alone& alone, const Tokens& prompt, int64_t count, const runtime::SamplerOptions& sampler,
          Reference* reference) {
  for (int64_t i = 0; i < count; ++i) {
    reference->drawn.push_back(alone.turn(i == 0 ? prompt : Tokens(), 1, sampler)[0]);
    reference->log_probs.push_back(log_softmax(alone.session().output()));
  }
}

Tokens tokens_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_of(const Tokens& tokens) {
  return text_of_tokens(tokens, model::Modality::kBytes);
}

/// The tokens with the largest values, of equals the lower first.
Tokens ranked(const std::vector<double>& log_probs, int64_t count) {
  Tokens order(log_probs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return log_probs[static_cast<size_t>(a)] > log_probs[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

std::string byte_name(int32_t token) {
  if (token < 128) return {static_cast<char>(token)};
  const char* digits = "0123456789abcdef";
  return std::string("\\x") + digits[token / 16] + digits[token % 16];
}

/// The token of a name that byte_name() gives.
int32_t byte_named(const std::string& name) {
  return name.size() == 1 ? name[0] : std::stoi(name.substr(2), nullptr, 16);
}

double number_at(const Json& json, const std::string& path) {
  const Json value = at(json, path);
  const double* number = value.as_double();
  const int64_t* integer = value.as_int();
  if (number == nullptr && integer == nullptr) ADD_FAILURE() << path << " is no number";
  return number != nullptr ? *number : integer != nullptr ? static_cast<double>(*integer) : 0;
}

size_t size_at(const Json& json, const std::string& path) {
  const Json value = at(json, path);
  return value.as_array() != nullptr ? value.as_array()->size() : 0;
}

std::string text_at(const Json& json, const std::string& path) {
  const Json value = at(json, path);
  return value.as_string() != nullptr ? *value.as_string() : std::string(value.type_name());
}

/// The tokens of a completion's logprobs over bytes.
Tokens told_tokens(const Json& log_probs) {
  Tokens tokens;
  const Json names = at(log_probs, "tokens");
  if (names.as_array() == nullptr) return tokens;
  for (const Json& name : *names.as_array()) tokens.push_back(byte_named(*name.as_string()));
  return tokens;
}

/// Characters before the one that token `i` is part of.
int64_t offset_of(const Tokens& tokens, size_t i) {
  const std::string text = text_of({tokens.begin(), tokens.begin() + static_cast<int64_t>(i) + 1});
  return runtime::count_characters(text) - 1;
}

/// A completion's logprobs are those of the first of the reference's tokens.
void expect_completion(const Json& log_probs, const Reference& reference, size_t first,
                       int64_t likeliest) {
  const Tokens told = told_tokens(log_probs);
  ASSERT_LE(first + told.size(), reference.drawn.size());
  const Tokens all(reference.drawn.begin() + static_cast<int64_t>(first), reference.drawn.end());
  for (const char* list : {"token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(size_at(log_probs, list), told.size()) << list;
  }
  for (size_t i = 0; i < told.size(); ++i) {
    const std::string number = std::to_string(i);
    const std::vector<double>& values = reference.log_probs[first + i];
    EXPECT_EQ(told[i], all[i]);
    const double own = values[static_cast<size_t>(all[i])];
    EXPECT_NEAR(number_at(log_probs, "token_logprobs." + number), own, 1e-12);
    EXPECT_EQ(at(log_probs, "text_offset." + number), Json(offset_of(all, i))) << i;
    Tokens wanted = ranked(values, likeliest);
    if (std::find(wanted.begin(), wanted.end(), all[i]) == wanted.end()) wanted.push_back(all[i]);
    const Json top = at(log_probs, "top_logprobs." + number);
    ASSERT_NE(top.as_object(), nullptr);
    ASSERT_EQ(top.as_object()->size(), wanted.size());
    for (size_t k = 0; k < wanted.size(); ++k) {
      const auto& [name, value] = (*top.as_object())[k];
      EXPECT_EQ(name, byte_name(wanted[k]));
      EXPECT_NEAR(number_at(Json(Json::Object{{"v", value}}), "v"),
                  values[static_cast<size_t>(wanted[k])], 1e-12);
    }
  }
}

/// The lists of a stream's chunks of choice 0 put together, each chunk's text being that of its tokens.
Json joined(const std::vector<Json>& events, std::string* text) {
  Json::Array lists[4];
  const char* const names[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
  for (const Json& event : events) {
    const std::string piece = text_at(event, "choices.0.text");
    *text += piece;
    const Json log_probs = at(event, "choices.0.logprobs");
    EXPECT_EQ(text_of(told_tokens(log_probs)), piece);
    for (int i = 0; i < 4; ++i) {
      const Json list = at(log_probs, names[i]);
      if (list.as_array() == nullptr) continue;
      lists[i].insert(lists[i].end(), list.as_array()->begin(), list.as_array()->end());
    }
  }
  Json result;
  for (int i = 0; i < 4; ++i) result.set(names[i], std::move(lists[i]));
  return result;
}

TEST(ApiLogProbs, AreTheModelsOwnBeforeSampling) {
  const ModelPointer model = text_model();
  Site site(model);
  const runtime::SamplerOptions sampler{.temperature = 0.5f, .top_k = 90, .top_p = 0.9f};
  Alone alone(model, 7);
  Reference reference;
  draw(alone, tokens_of("Hello"), 60, sampler, &reference);
  const std::string ask =
      R"({"prompt":"Hello","max_tokens":60,"seed":7,"temperature":0.5,"top_k":90,"top_p":0.9)";
  const Answered plain = site.post(kCompletions, ask + "}");
  EXPECT_TRUE(plain.at("choices.0.logprobs").is_null());
  for (const int64_t likeliest : {0, 1, 5, 20}) {
    const Answered answer =
        site.post(kCompletions, ask + R"(,"logprobs":)" + std::to_string(likeliest) + "}");
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.at("choices.0.text"), plain.at("choices.0.text"));
    EXPECT_EQ(size_at(answer.json(), "choices.0.logprobs.tokens"), 60);
    expect_completion(answer.at("choices.0.logprobs"), reference, 0, likeliest);
  }
  const Answered nothing =
      site.post(kCompletions, R"({"prompt":"Hello","max_tokens":0,"logprobs":2})");
  EXPECT_EQ(nothing.at("choices.0.logprobs"), Json(Json::Object{{"tokens", Json::Array()},
                                                                {"token_logprobs", Json::Array()},
                                                                {"top_logprobs", Json::Array()},
                                                                {"text_offset", Json::Array()}}));
}

TEST(ApiLogProbs, ComeWithTheirText) {
  const ModelPointer model = text_model();
  Site site(model);
  size_t characters_of_many = 0;
  for (int seed = 0; seed < 10; ++seed) {
    Alone alone(model, static_cast<uint64_t>(seed));
    Reference reference;
    draw(alone, tokens_of("ab"), 120, {}, &reference);
    const std::string ask =
        R"("prompt":"ab","max_tokens":120,"logprobs":2,"seed":)" + std::to_string(seed) + "}";
    const Answered whole = site.post(kCompletions, "{" + ask);
    expect_completion(whole.at("choices.0.logprobs"), reference, 0, 2);
    EXPECT_EQ(whole.at("choices.0.text"), Json(text_of(reference.drawn)));
    std::string text;
    const Json told = joined(site.post(kCompletions, R"({"stream":true,)" + ask).events(), &text);
    EXPECT_EQ(told, whole.at("choices.0.logprobs"));
    EXPECT_EQ(Json(text), whole.at("choices.0.text"));
    for (size_t i = 1; i < reference.drawn.size(); ++i) {
      characters_of_many += offset_of(reference.drawn, i) == offset_of(reference.drawn, i - 1);
    }
  }
  EXPECT_GT(characters_of_many, 10);
}

TEST(ApiLogProbs, EndWhereAStopStringCutsTheText) {
  const ModelPointer model = text_model();
  Site site(model);
  Alone alone(model, 11);
  Reference reference;
  draw(alone, tokens_of("Hi"), 80, {}, &reference);
  const std::string text = text_of(reference.drawn);
  std::vector<size_t> begins;  // of characters
  for (size_t i = 0; i < text.size(); ++i) {
    if (runtime::begins_character(text[i])) begins.push_back(i);
  }
  ASSERT_GT(begins.size(), 60);
  const auto part = [&](size_t from, size_t count) {
    return text.substr(begins[from], begins[from + count] - begins[from]);
  };
  for (size_t from = 0; from < 50; from += 3) {
    // Two that only begin as the text does hold some of it back.
    const Json body = Json::Object{
        {"prompt", "Hi"},
        {"seed", 11},
        {"max_tokens", 80},
        {"logprobs", 3},
        {"stop", Json::Array{part(from / 2, 4) + "\x01#", part(from, 2) + "\x02#", part(from, 3)}}};
    const Answered whole = site.post(kCompletions, body.dump());
    ASSERT_EQ(whole.status, 200) << whole.body;
    EXPECT_EQ(whole.at("choices.0.finish_reason"), Json("stop"));
    const std::string returned = text_at(whole.json(), "choices.0.text");
    EXPECT_LT(returned.size(), text.size());
    const Json log_probs = whole.at("choices.0.logprobs");
    expect_completion(log_probs, reference, 0, 3);
    Tokens told = told_tokens(log_probs);
    EXPECT_EQ(text_of(told), returned);
    told.push_back(reference.drawn[told.size()]);
    EXPECT_NE(text_of(told), returned) << "a token of the text is missing";
    Json streamed = body;
    streamed.set("stream", true);
    std::string said;
    EXPECT_EQ(joined(site.post(kCompletions, streamed.dump()).events(), &said), log_probs);
    EXPECT_EQ(said, returned);
  }
}

TEST(ApiLogProbs, AreTheSameBitsAloneAndInCompany) {
  const ModelPointer model = text_model();
  const auto ask = [](int i) {
    return Json(Json::Object{{"prompt", std::string(static_cast<size_t>(1 + i % 7), 'p')},
                             {"max_tokens", 40},
                             {"n", 8},
                             {"logprobs", i % 2 == 0 ? Json(5) : Json()},
                             {"temperature", 0.9},
                             {"seed", 100 * i}})
        .dump();
  };
  constexpr int kRequests = 10;  // 80 turns of 256 choices: enough for the threads to draw
  std::vector<Json> alone;
  {
    Site site(model);
    for (int i = 0; i < kRequests; ++i) alone.push_back(site.post(kCompletions, ask(i)).json());
    for (int i = 0; i < 3; ++i) {
      const Answered one = site.post(
          kCompletions, R"({"prompt":"p","max_tokens":40,"logprobs":5,"temperature":0.9,"seed":)" +
                            std::to_string(i) + "}");
      EXPECT_EQ(one.at("choices.0.logprobs"),
                at(alone[0], "choices." + std::to_string(i) + ".logprobs"));
    }
  }
  for (const int threads : {1, 3}) {
    ServiceOptions service;
    service.engine.threads = threads;
    Site site(model, {}, service);
    std::vector<std::shared_ptr<FakeExchange>> running;
    for (int i = 0; i < kRequests; ++i) {
      running.push_back(site.start(site.request("POST", kCompletions, ask(i))));
    }
    for (int i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(running[static_cast<size_t>(i)]->wait());
      const Json json = json_of(running[static_cast<size_t>(i)]->reply.body);
      EXPECT_EQ(at(json, "choices"), at(alone[static_cast<size_t>(i)], "choices"));
      EXPECT_EQ(at(json, "choices.3.logprobs").is_null(), i % 2 == 1);
    }
  }
}

TEST(ApiLogProbs, OfChatsAreThoseOfTheContent) {
  const ModelPointer model = text_model();
  Site site(model);
  const std::string rendered = "User: Hi\n\nAssistant:";
  uint64_t seed = 0;  // of an answer that begins with the blank that is left out
  while (Alone(model, seed).turn(tokens_of(rendered), 1, {})[0] != ' ') ++seed;
  for (const uint64_t with : {seed, seed + 1}) {
    const std::string ask =
        R"("messages":[{"role":"user","content":"Hi"}],"max_tokens":40,"logprobs":true,)"
        R"("top_logprobs":4,"seed":)" +
        std::to_string(with) + "}";
    const Answered chat = site.post(kChat, "{" + ask);
    ASSERT_EQ(chat.status, 200) << chat.body;
    Alone alone(model, with);
    Reference reference;
    draw(alone, tokens_of(rendered), 40, {}, &reference);
    const size_t first = with == seed ? 1 : 0;
    const Json content = chat.at("choices.0.logprobs.content");
    ASSERT_NE(content.as_array(), nullptr) << chat.body;
    EXPECT_TRUE(chat.at("choices.0.logprobs.refusal").is_null());
    Tokens told;
    for (size_t i = 0; i < content.as_array()->size(); ++i) {
      const Json& entry = (*content.as_array())[i];
      const int32_t token = reference.drawn[first + i];
      const std::vector<double>& values = reference.log_probs[first + i];
      const auto expect_entry = [&values](const Json& json, int32_t wanted) {
        EXPECT_EQ(text_at(json, "token"), byte_name(wanted));
        EXPECT_EQ(at(json, "bytes"), Json(Json::Array{wanted}));
        EXPECT_NEAR(number_at(json, "logprob"), values[static_cast<size_t>(wanted)], 1e-12);
      };
      expect_entry(entry, token);
      const Tokens likeliest = ranked(values, 4);
      ASSERT_EQ(size_at(entry, "top_logprobs"), 4);
      for (size_t k = 0; k < 4; ++k) {
        expect_entry(at(entry, "top_logprobs." + std::to_string(k)), likeliest[k]);
      }
      told.push_back(token);
    }
    EXPECT_EQ(text_of(told), text_at(chat.json(), "choices.0.message.content"));
    Json::Array streamed;
    const auto events = site.post(kChat, R"({"stream":true,)" + ask).events();
    EXPECT_TRUE(at(events.front(), "choices.0.logprobs").is_null());
    EXPECT_TRUE(at(events.back(), "choices.0.logprobs").is_null());
    for (const Json& event : events) {
      const Json list = at(event, "choices.0.logprobs.content");
      if (list.as_array() == nullptr) continue;
      streamed.insert(streamed.end(), list.as_array()->begin(), list.as_array()->end());
    }
    EXPECT_EQ(Json(streamed), content);
  }
  const Answered own = site.post(
      kChat, R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"logprobs":true})");
  EXPECT_EQ(own.at("choices.0.logprobs.content.0.top_logprobs"), Json(Json::Array()));
}

TEST(ApiLogProbs, OfModelsOverTokensNameNumbers) {
  const ModelPointer model = endless_model({linear()});
  Site site(model);
  Alone alone(model, 9);
  Reference reference;
  draw(alone, {1, 2, 3}, 6, {}, &reference);
  const Answered answer =
      site.post(kCompletions, R"({"prompt":[1,2,3],"max_tokens":6,"seed":9,"logprobs":2})");
  int64_t offset = 0;
  for (size_t i = 0; i < 6; ++i) {
    const std::string number = std::to_string(i);
    const std::string name = std::to_string(reference.drawn[i]);
    EXPECT_EQ(answer.at("choices.0.logprobs.tokens." + number), Json(name));
    EXPECT_EQ(answer.at("choices.0.logprobs.text_offset." + number), Json(offset));
    offset += static_cast<int64_t>(name.size()) + 1;  // and a blank
    const Json top = answer.at("choices.0.logprobs.top_logprobs." + number);
    EXPECT_EQ((*top.as_object())[0].first,
              std::to_string(ranked(reference.log_probs[i], 1).front()));
    EXPECT_NEAR(number_at(top, name),
                reference.log_probs[i][static_cast<size_t>(reference.drawn[i])], 1e-12);
  }
}

TEST(ApiLogProbs, OfASessionAreOfTheTurnThatDrewTheToken) {
  const ModelPointer model = text_model();
  Site site(model);
  // A first turn that ends, and a second one that goes on, within a character.
  uint64_t seed = 0;
  Tokens drawn;
  do {
    drawn = Alone(model, ++seed).turn({'a'}, 9, {});
  } while (drawn[2] > 0x7f || drawn[3] < 0xc2 || drawn[3] > 0xdf || drawn[4] < 0x80 ||
           drawn[4] > 0xbf);
  Alone alone(model, seed);
  Reference reference;
  draw(alone, {'a'}, 9, {}, &reference);
  const std::string number = std::to_string(seed);
  for (const bool stream : {false, true}) {
    const std::string id = stream ? "t" : "s";
    site.post("/v1/sessions", R"({"id":")" + id + R"(","seed":)" + number + "}");
    const auto turn = [&](const std::string& ask) {
      return site.post(kCompletions, R"({"logprobs":1,"session":")" + id + "\"," + ask +
                                         (stream ? R"(,"stream":true})" : "}"));
    };
    const Answered first = turn(R"("prompt":"a","max_tokens":4)");
    const Answered second = turn(R"("max_tokens":5)");
    if (stream) {
      const auto events = first.events();
      const Json& last = events[events.size() - 2];
      EXPECT_EQ(text_at(last, "choices.0.text"), "");
      EXPECT_EQ(text_at(last, "choices.0.logprobs.tokens.0"), byte_name(drawn[3]));
      EXPECT_EQ(text_at(second.events().front(), "choices.0.logprobs.tokens.0"),
                byte_name(drawn[4]));
      continue;
    }
    EXPECT_EQ(size_at(first.json(), "choices.0.logprobs.tokens"), 4);
    expect_completion(first.at("choices.0.logprobs"), reference, 0, 1);
    EXPECT_EQ(size_at(second.json(), "choices.0.logprobs.tokens"), 5);
    expect_completion(second.at("choices.0.logprobs"), reference, 4, 1);
  }
}

TEST(ApiLogProbs, ARetriedTurnHasThemToo) {
  Site site(text_model());
  site.post("/v1/sessions", R"({"id":"s","seed":4})");
  const auto turn = [&](const std::string& more) {
    http::Request request = site.request(
        "POST", kCompletions, R"({"session":"s","prompt":"ab","max_tokens":60)" + more + "}");
    request.headers.emplace_back("Idempotency-Key", "k");
    return site.send(request);
  };
  const Answered first = turn(R"(,"logprobs":3)");
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(size_at(first.json(), "choices.0.logprobs.tokens"), 60);
  // From memory, and from the store.
  for (const bool stored : {false, true}) {
    if (stored) {
      EXPECT_EQ(site.post("/v1/sessions/s/pause", "").status, 200);
    }
    const Answered again = turn(R"(,"logprobs":3)");
    EXPECT_EQ(again.at("tarn.replayed"), Json(true)) << again.body;
    EXPECT_EQ(again.at("choices"), first.at("choices"));
  }
  std::string text;
  EXPECT_EQ(joined(turn(R"(,"logprobs":3,"stream":true)").events(), &text),
            first.at("choices.0.logprobs"));
  EXPECT_EQ(turn(R"(,"logprobs":4)").status, 422);
  EXPECT_EQ(turn("").status, 422);
}

}  // namespace
}  // namespace tarn::serve::api
