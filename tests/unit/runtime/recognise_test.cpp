#include "runtime/recognise.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "runtime/ctc.h"
#include "runtime/session.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

using Frames = std::vector<float>;

std::shared_ptr<const model::Model> frames_model(int64_t max_tokens) {
  const auto json = parse_json(R"({
      "format": "tarn-model", "format_version": 1, "modality": "frames",
      "frames": {"features": 3, "stack": 2}, "model_dim": 8, "max_tokens": 0,
      "position": {"kind": "none"}, "norm": {"kind": "layer_norm", "placement": "pre"},
      "layers": [{"mixer": {"name": "bidirectional", "mixer": {"name": "lstm", "hidden_dim": 5}},
                  "mlp": null}],
      "head": {"kind": "ctc", "classes": 4}})",
                               "test");
  Json document = *json;
  document.set("max_tokens", max_tokens);
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
  const auto greedy = recognise(*model, utterances, {}, &pool);
  const auto beam = recognise(*model, utterances, {.beam = 8}, nullptr);
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
  const auto error = [](const model::Model& model, const std::vector<Frames>& utterances,
                        const RecogniseOptions& options = {}) {
    const auto result = recognise(model, utterances, options, nullptr);
    return result.ok() ? std::string() : result.error().to_string();
  };
  const auto model = frames_model(4);
  EXPECT_EQ(error(*model, random_utterances({8})), "");
  EXPECT_EQ(error(*model, random_utterances({8, 9})),
            "utterance 1: has 5 rows, the model takes at most 4");
  EXPECT_EQ(error(*model, {Frames(7)}),
            "utterance 0: has 7 numbers, wanted a multiple of the 3 features");
  EXPECT_EQ(error(*model, {Frames(6, NAN)}), "utterance 0: the model's outputs are not finite");
  const std::atomic<bool> cancel{true};
  EXPECT_NE(error(*model, random_utterances({8}), {.cancel = &cancel}).find("stopped"),
            std::string::npos);
  const Json symbols = Json::Object{{"name", "linear_attention"}, {"num_heads", 1}, {"key_dim", 4}};
  EXPECT_EQ(error(*tiny_model({symbols}), random_utterances({8})),
            "modality: the model is over symbols, wanted one over frames");
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
