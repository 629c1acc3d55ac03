#include "runtime/recognise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "runtime/ctc.h"
#include "runtime/session.h"
#include "runtime/streaming_recogniser.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

using Frames = std::vector<float>;

constexpr const char* kBothWays =
    R"([{"mixer": {"name": "bidirectional", "mixer": {"name": "lstm", "hidden_dim": 5}}, "mlp": null}])";
constexpr const char* kCausal =
    R"([{"mixer": {"name": "gated_delta_rule", "num_heads": 2, "key_dim": 4}, "mlp": null},
        {"mixer": {"name": "linear_attention", "num_heads": 2, "key_dim": 4}, "mlp": null}])";

std::shared_ptr<const model::Model> frames_model(int64_t max_tokens,
                                                 const char* layers = kBothWays) {
  const auto json = parse_json(R"({
      "format": "tarn-model", "format_version": 1, "modality": "frames",
      "frames": {"features": 3, "stack": 2}, "model_dim": 8, "max_tokens": 0,
      "position": {"kind": "sinusoidal"}, "embedding_scale": 0.3, "norm": {"kind": "layer_norm", "placement": "pre"},
      "head": {"kind": "ctc", "classes": 4}})",
                               "test");
  Json document = *json;
  document.set("max_tokens", max_tokens);
  document.set("layers", *parse_json(layers, "test"));
  return model::Model::random(*model::parse_model_config(document, "test"), 3, {});
}

std::vector<Frames> random_utterances(const std::vector<int64_t>& lengths) {
  std::vector<Frames> utterances;
  Philox rng{5, 0, 0};
  for (const int64_t length : lengths) {
    Frames& frames = utterances.emplace_back();
    for (int64_t i = 0; i < 3 * length; ++i) frames.push_back(3.0f * rng.next_normal());
  }
  return utterances;
}

TEST(Recognise, DecodesTheRowsOfEachUtterance) {
  const auto model = frames_model(0);
  const std::vector<Frames> utterances = random_utterances({9, 0, 40});
  ThreadPool pool(2);
  const auto greedy = recognise(model, utterances, {}, &pool);
  const auto beam = recognise(model, utterances, {.beam = 8}, nullptr);
  ASSERT_TRUE(greedy.ok() && beam.ok());
  for (size_t i = 0; i < utterances.size(); ++i) {
    Frames frames = utterances[i];
    const int64_t begin = 0, rows = (static_cast<int64_t>(frames.size()) / 3 + 1) / 2;
    frames.resize(static_cast<size_t>(rows * 6), 0.0f);  // nine frames are four rows and a half
    std::vector<float> logits(static_cast<size_t>(rows * 4));
    model::TokenBatch batch;
    batch.sequences = {1, &begin, &rows};
    batch.frames = frames.data();
    Arena arena;
    model->forward(batch, {}, mixers::Form::kParallel, model::Outputs::kAllRows, logits.data(),
                   nullptr, arena);
    EXPECT_EQ((*greedy)[i], ctc_greedy(rows, 4, logits.data())) << i;
    EXPECT_EQ((*beam)[i], ctc_prefix_beam(rows, 4, logits.data(), 8)[0].labels) << i;
  }
  EXPECT_TRUE((*greedy)[1].empty());
}

TEST(Recognise, RefusesWhatItCannotRead) {
  const auto error = [](const std::shared_ptr<const model::Model>& model,
                        const std::vector<Frames>& utterances,
                        const RecogniseOptions& options = {}) {
    const auto result = recognise(model, utterances, options, nullptr);
    return result.ok() ? std::string() : result.error().to_string();
  };
  const auto model = frames_model(4);
  EXPECT_EQ(error(model, random_utterances({8})), "");
  EXPECT_EQ(error(model, random_utterances({8, 9})),
            "utterance 1: has 5 rows, the model takes at most 4");
  EXPECT_EQ(error(model, {Frames(7)}),
            "utterance 0: has 7 numbers, wanted a multiple of the 3 features");
  EXPECT_EQ(error(model, {Frames(6, NAN)}), "utterance 0: the model's outputs are not finite");
  const std::atomic<bool> cancel{true};
  EXPECT_NE(error(model, random_utterances({8}), {.cancel = &cancel}).find("stopped"),
            std::string::npos);
  const Json symbols = Json::Object{{"name", "linear_attention"}, {"num_heads", 1}, {"key_dim", 4}};
  EXPECT_EQ(error(tiny_model({symbols}), random_utterances({8})),
            "modality: the model is over symbols, wanted one over frames");
}

TEST(Recognise, StreamsHearWhatWholeUtterancesSayHoweverTheyAreCut) {
  const auto model = frames_model(0, kCausal);
  // One longer than a piece, one that ends within a row.
  const std::vector<Frames> utterances = random_utterances({700, 1, 0, 33});
  const auto whole = recognise(model, utterances, {}, nullptr);
  ASSERT_TRUE(whole.ok());
  EXPECT_GT((*whole)[0].size(), 50u);
  for (const int64_t stream : {1, 2, 5, 64, 10'000}) {
    const auto streamed = recognise(model, utterances, {.stream = stream}, nullptr);
    ASSERT_TRUE(streamed.ok()) << streamed.error().to_string();
    EXPECT_EQ(*streamed, *whole) << stream;
  }
}

TEST(Recognise, StreamsNameLabelsAsTheyComeInConstantMemory) {
  const auto model = frames_model(0, kCausal);
  auto opened = StreamingRecogniser::open(model, nullptr);
  ASSERT_TRUE(opened.ok());
  StreamingRecogniser& recogniser = *opened;
  const Frames frames = random_utterances({400})[0];
  std::vector<int32_t> before;
  const int64_t bytes = recogniser.state_bytes();
  for (size_t at = 0; at < frames.size(); at += 30) {
    ASSERT_TRUE(recogniser.push(std::span(frames).subspan(at, 30)).ok());
    ASSERT_GE(recogniser.labels().size(), before.size());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), recogniser.labels().begin()));
    before = recogniser.labels();
  }
  EXPECT_EQ(recogniser.state_bytes(), bytes);
  EXPECT_GT(bytes, 0);
  recogniser.reset();
  EXPECT_TRUE(recogniser.labels().empty());
  ASSERT_TRUE(recogniser.push(frames).ok());
  EXPECT_EQ(recogniser.labels(), before);
  EXPECT_FALSE(recogniser.push(std::span(frames).first(2)).ok());
}

TEST(Recognise, StreamsNeedCausalModelsAndRoom) {
  const auto refused = recognise(frames_model(0), random_utterances({8}), {.stream = 4}, nullptr);
  EXPECT_NE(refused.error().to_string().find("not causal"), std::string::npos);
  const auto model = frames_model(4, kCausal);
  EXPECT_FALSE(recognise(model, random_utterances({8}), {.beam = 2, .stream = 4}, nullptr).ok());
  auto recogniser = StreamingRecogniser::open(model, nullptr);
  ASSERT_TRUE(recogniser.ok());
  EXPECT_TRUE(recogniser->push(Frames(3 * 8)).ok());
  EXPECT_FALSE(recogniser->push(Frames(3 * 2)).ok());
}

TEST(Recognise, ModelsOverFramesHaveNoSessions) {
  const auto model = frames_model(0);
  Session session(model, {});
  Session* const sessions[] = {&session};
  Generator generator(model, nullptr);
  EXPECT_NE(generator.evaluate(sessions).error().to_string().find("the model is over frames"),
            std::string::npos);
}

}  // namespace
}  // namespace tarn::runtime
