#include "runtime/transcriber.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "runtime/recognise.h"

namespace tarn::runtime {
namespace {

constexpr const char* kRunning =
    R"({"sample_rate": 8000, "mels": 12, "differences": 1, "normalisation": {"kind": "running"}})";

std::shared_ptr<const model::Model> listener(const char* frontend, const char* mixer) {
  Json json = *parse_json(R"({
      "format": "tarn-model", "format_version": 1, "modality": "frames",
      "frames": {"features": 24, "stack": 2}, "model_dim": 8, "max_tokens": 0,
      "position": {"kind": "none"}, "norm": {"kind": "layer_norm", "placement": "pre"},
      "head": {"kind": "ctc", "classes": 5}})",
                          "test");
  if (frontend != nullptr) json.set("frontend", *parse_json(frontend, "test"));
  json.set("layers",
           Json::Array{Json::Object{{"mixer", *parse_json(mixer, "test")}, {"mlp", Json()}}});
  return model::Model::random(*model::parse_model_config(json, "test"), 3, {});
}

constexpr const char* kGated = R"({"name": "gated_delta_rule", "num_heads": 2, "key_dim": 4})";

std::vector<float> speech(size_t count) {
  std::vector<float> samples;
  Philox rng{9, 0, 0};
  for (size_t i = 0; i < count; ++i) {
    const float loudness = i / 900 % 3 == 0 ? 0.2f : 0.01f;
    const float pitch = std::sin(0.0002f * static_cast<float>(i % 5000 * (i % 5000)));
    samples.push_back(loudness * (pitch + 0.3f * rng.next_normal()));
  }
  return samples;
}

TEST(Transcriber, HearsWhatWholeSoundSaysHoweverItIsCut) {
  const auto model = listener(kRunning, kGated);
  const std::vector<float> samples = speech(30'000);
  audio::Frontend frontend(*model->config().frontend);
  std::vector<float> frames;
  frontend.push(samples, frames);
  frontend.finish(frames);
  const std::vector<int32_t> whole = (*recognise(model, {{frames}}, {}, nullptr))[0];
  EXPECT_GT(whole.size(), 20u);
  auto opened = Transcriber::open(model, nullptr);
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  for (const size_t piece : {1, 79, 80, 800, 8000, 30'000}) {
    std::vector<int32_t> labels;
    const auto take = [&] {
      const std::vector<int32_t> some = opened->take_labels();
      labels.insert(labels.end(), some.begin(), some.end());
    };
    for (size_t at = 0; at < samples.size(); at += piece) {
      const size_t size = std::min(piece, samples.size() - at);
      ASSERT_TRUE(opened->push(std::span(samples).subspan(at, size)).ok());
      take();
    }
    ASSERT_TRUE(opened->finish().ok());
    take();
    EXPECT_EQ(labels, whole) << "in pieces of " << piece;
    EXPECT_TRUE(opened->take_labels().empty());
    opened->reset();
  }
}

TEST(Transcriber, NeedsAFrontEndThatCanBeStreamedAndACausalModel) {
  const auto error = [](const std::shared_ptr<const model::Model>& model) {
    const auto opened = Transcriber::open(model, nullptr);
    return opened.ok() ? "" : opened.error().to_string();
  };
  EXPECT_NE(error(listener(nullptr, kGated)).find("frontend: the model does not say"),
            std::string::npos);
  EXPECT_NE(
      error(listener(R"({"sample_rate": 8000, "mels": 24, "normalisation": {"kind": "speaker"}})",
                     kGated))
          .find("frontend.normalisation"),
      std::string::npos);
  EXPECT_NE(error(listener(kRunning, R"({"name": "lstm", "hidden_dim": 4, "bidirectional": true})"))
                .find("not causal"),
            std::string::npos);
}

}  // namespace
}  // namespace tarn::runtime
