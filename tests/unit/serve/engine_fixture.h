#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "runtime/snapshot.h"
#include "serve/engine.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::serve {

using Tokens = std::vector<int32_t>;
using ModelPointer = std::shared_ptr<const model::Model>;

inline Json mixer_json(const std::string& text) {
  auto json = parse_json(text, "mixer");
  TARN_CHECK(json.ok());
  return *json;
}
inline Json linear() {
  return mixer_json(R"({"name": "linear_attention", "num_heads": 2, "key_dim": 4})");
}
inline Json delta() {
  return mixer_json(
      R"({"name": "gated_delta_rule", "num_heads": 2, "key_dim": 4, "value_dim": 4})");
}
inline Json softmax() {
  return mixer_json(R"({"name": "softmax_attention", "num_heads": 2, "key_dim": 4})");
}

/// No limit of length.
inline ModelPointer endless_model(const std::vector<Json>& mixers) {
  runtime::TinyOptions options;
  options.max_tokens = 0;
  return runtime::tiny_model(mixers, options);
}

/// Over bytes of text, no limit of length.
inline ModelPointer text_model() {
  const Json layer = Json::Object{
      {"mixer", linear()}, {"mlp", Json::Object{{"hidden_dim", 24}, {"activation", "gelu"}}}};
  const Json json =
      Json::Object{{"format", "tarn-model"},
                   {"format_version", 1},
                   {"modality", "bytes"},
                   {"vocabulary", 257},
                   {"start_token", 256},
                   {"model_dim", 16},
                   {"max_tokens", 0},
                   {"position", Json::Object{{"kind", "sinusoidal"}}},
                   {"embedding_scale", 1.0},
                   {"norm", Json::Object{{"kind", "layer_norm"}, {"placement", "post"}}},
                   {"layers", Json::Array{layer, layer}},
                   {"head", Json::Object{{"kind", "categorical"}, {"classes", 256}}}};
  auto config = model::parse_model_config(json, "text");
  TARN_CHECK(config.ok());
  return model::Model::random(*config, 3, {});
}

inline Tokens random_tokens(int64_t count, uint64_t stream, uint32_t below = 11) {
  Philox rng{99, stream, 0};
  Tokens tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.next_below(below));
  return tokens;
}

inline std::unique_ptr<Engine> make_engine(const ModelPointer& model, EngineOptions options = {}) {
  auto engine = Engine::create(model, std::move(options));
  TARN_CHECK(engine.ok());
  return std::move(*engine);
}

/// What a turn told. Read it after the handle's wait().
struct Record {
  Tokens tokens;
  std::vector<int64_t> positions;
  std::vector<int64_t> rounds;  // the engine's count at each token
  std::string text;
  TurnEnd end;
  int ends = 0;
};

inline std::shared_ptr<Record> record(const Engine& engine, Request* request) {
  auto result = std::make_shared<Record>();
  request->on_token = [result, &engine](const TokenEvent& event) {
    result->tokens.push_back(event.token);
    result->positions.push_back(event.position);
    result->rounds.push_back(engine.metrics().rounds.load());
    result->text += event.text;
  };
  request->on_end = [result](const TurnEnd& end) {
    result->end = end;
    ++result->ends;
  };
  return result;
}

/// Submits and waits.
inline Record play(Engine& engine, Request request) {
  const auto result = record(engine, &request);
  Submission submission = engine.submit(std::move(request));
  if (!submission.admitted()) {
    ADD_FAILURE() << submission.refusal->error.to_string();
    return {};
  }
  submission.handle.wait();
  return *result;
}

/// A session and a generator of its own: what the engine must agree with.
class Alone {
 public:
  Alone(const ModelPointer& model, uint64_t seed)
      : generator_(model, nullptr), session_(model, {seed, 0, false}) {
    flush_denormals();
  }
  Tokens turn(const Tokens& prompt, int64_t count, const runtime::SamplerOptions& sampler) {
    EXPECT_TRUE(session_.append(prompt).ok());
    runtime::Session* const sessions[] = {&session_};
    Tokens drawn(static_cast<size_t>(count));
    for (int32_t& token : drawn) {
      EXPECT_TRUE(generator_.step(sessions, sampler, {&token, 1}).ok());
      if (session_.model().config().modality == model::Modality::kBytes) session_.text_of(token);
    }
    if (count == 0) {
      EXPECT_TRUE(generator_.evaluate(sessions).ok());
    }
    sampler_ = sampler;
    return drawn;
  }
  std::string snapshot() const { return runtime::encode_snapshot(session_, sampler_); }
  runtime::Session& session() { return session_; }

 private:
  runtime::Generator generator_;
  runtime::Session session_;
  runtime::SamplerOptions sampler_;
};

inline std::string snapshot_of(Engine& engine, const std::string& id) {
  auto bytes = engine.sessions().snapshot(id);
  EXPECT_TRUE(bytes.ok()) << bytes.error().to_string();
  return bytes.ok() ? std::move(*bytes) : std::string();
}

}  // namespace tarn::serve
