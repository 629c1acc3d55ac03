#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "model/model.h"
#include "model/parameters.h"
#include "unit/model/configs.h"
#include "unit/model/reference_decoder.h"

namespace tarn::model {
namespace {

constexpr uint64_t kSeed = 7;

Json frames_config(const std::string& position) {
  Json json;
  const Json symbols = small_config();
  for (const Json::Member& member : *symbols.as_object()) {
    if (member.first != "vocabulary" && member.first != "start_token") {
      json.set(member.first, member.second);
    }
  }
  json.set("modality", "frames");
  json.set("frames", json_of(R"({"features": 3, "stack": 2})"));
  json.set("position", Json::Object{{"kind", position}});
  json.set("head", json_of(R"({"kind": "ctc", "classes": 5})"));
  return json;
}

/// Whole sequences of frames, packed.
struct Frames {
  std::vector<int64_t> begin, length;
  std::vector<float> rows;

  Frames(const ModelConfig& config, const std::vector<int64_t>& lengths) : length(lengths) {
    int64_t count = 0;
    for (const int64_t rows_of_one : lengths) {
      begin.push_back(count);
      count += rows_of_one;
    }
    Philox rng{3, 1, 0};
    for (int64_t i = 0; i < count * config.input_width(); ++i) rows.push_back(rng.next_normal());
  }
};

std::vector<float> run(const Model& model, const Frames& frames, ThreadPool* pool = nullptr) {
  TokenBatch batch;
  batch.sequences = {static_cast<int64_t>(frames.begin.size()), frames.begin.data(),
                     frames.length.data()};
  batch.frames = frames.rows.data();
  const ModelConfig& config = model.config();
  const auto rows = frames.rows.size() / static_cast<size_t>(config.input_width());
  std::vector<float> output(rows * static_cast<size_t>(config.head.output_dim()), NAN);
  Arena arena;
  model.forward(batch, {}, mixers::Form::kParallel, Outputs::kAllRows, output.data(), pool, arena);
  return output;
}

std::vector<std::vector<float>> values_of(const ModelConfig& config) {
  std::vector<std::vector<float>> values;
  for (const mixers::ParamSpec& spec : parameter_table(config)) {
    values.emplace_back(static_cast<size_t>(element_count(spec.shape)));
    initialise(spec, kSeed, values.back().data());
  }
  return values;
}

TEST(FramesModel, AgreesWithTheReference) {
  for (const char* position : {"none", "learned", "sinusoidal"}) {
    const ModelConfig config = config_of(frames_config(position));
    EXPECT_EQ(parameter_table(config)[0].name, "embedding.input.weight");
    EXPECT_EQ(parameter_table(config)[0].shape, (std::vector<int64_t>{12, 6}));
    const Frames frames(config, {17});
    const std::vector<float> got = run(*Model::random(config, kSeed, {}), frames);
    const std::vector<double> want =
        ReferenceDecoder(config, values_of(config)).run_frames(frames.rows);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5) << position;
  }
}

TEST(FramesModel, BatchMatesAndThreadsChangeNoBitOfNonCausalLayers) {
  Json json = frames_config("sinusoidal");
  json.set("layers", json_of(R"([
      {"mixer": {"name": "softmax_attention", "num_heads": 2, "key_dim": 5, "causal": false},
       "mlp": {"hidden_dim": 7, "activation": "relu"}},
      {"mixer": {"name": "bidirectional", "mixer": {"name": "gated_delta_rule", "num_heads": 1,
                                                     "key_dim": 4}}, "mlp": null}])"));
  json.set("max_tokens", 0);
  const ModelConfig config = config_of(json);
  const auto model = Model::random(config, kSeed, {});
  // More rows than the decoder takes at once, empty and long sequences among them.
  const Frames together(config, {3, 700, 0, 1, 400, 1500, 20});
  const std::vector<float> output = run(*model, together);
  ThreadPool pool(3);
  EXPECT_EQ(std::memcmp(run(*model, together, &pool).data(), output.data(),
                        output.size() * sizeof(float)),
            0);
  for (size_t i = 0; i < together.begin.size(); ++i) {
    Frames alone(config, {});
    alone.begin = {0};
    alone.length = {together.length[i]};
    const auto first = together.rows.begin() + together.begin[i] * config.input_width();
    alone.rows.assign(first, first + together.length[i] * config.input_width());
    const std::vector<float> single = run(*model, alone);
    EXPECT_TRUE(std::equal(single.begin(), single.end(),
                           output.begin() + together.begin[i] * config.head.output_dim()))
        << "sequence " << i;
  }
}

}  // namespace
}  // namespace tarn::model
