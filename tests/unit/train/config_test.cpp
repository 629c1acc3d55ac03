#include "train/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json_override.h"
#include "unit/train/test_models.h"

namespace tarn::train {
namespace {

TEST(TrainConfig, RoundTrips) {
  const auto config = parse_train_config(small_training_json(kSmallLinear), "c");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  const auto again = parse_train_config(to_json(*config), "c");
  ASSERT_TRUE(again.ok()) << again.error().to_string();
  EXPECT_EQ(to_json(*again), to_json(*config));
  EXPECT_EQ(again->training.optimiser.kind, OptimiserKind::kRAdam);
  EXPECT_EQ(again->training.schedule.warm_up, 3);
}

TEST(TrainConfig, OverridesReplaceValuesOfTheSameType) {
  Json json = small_training_json(kSmallLinear);
  for (const char* good :
       {"training.updates=7", "training.optimiser.learning_rate=1", "training.precision=bf16",
        "model.layers.0.repeat=3", "training.evaluate_every=5", "training.optimiser.kind=adamw"}) {
    EXPECT_TRUE(apply_override(json, good).ok()) << good;
  }
  const auto config = parse_train_config(json, "c");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->training.updates, 7);
  EXPECT_EQ(config->training.optimiser.learning_rate, 1.0);
  EXPECT_EQ(config->training.precision, DType::kBF16);
  EXPECT_EQ(config->model.layers.size(), 3u);
  EXPECT_EQ(config->training.optimiser.kind, OptimiserKind::kAdamW);
  for (const char* bad : {"training.updates", "=3", "training.updates=many", "trainin.updates=3",
                          "training.precision=3", "model.layers.9.repeat=1", "training.updates.x=1",
                          "training.optimiser=3"}) {
    EXPECT_FALSE(apply_override(json, bad).ok()) << bad;
  }
}

TEST(TrainConfig, BadValuesNameTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"training.updates=0", "updates"},
      {"training.batch_size=-1", "batch_size"},
      {"training.optimiser.learning_rate=-0.5", "learning_rate"},
      {"training.optimiser.betas=[0.9]", "betas"},
      {"training.optimiser.betas=[0.9,1.0]", "betas"},
      {"training.optimiser.betas=[0.9,\"x\"]", "betas"},
      {"training.precision=f16", "precision"},
      {"training.colour=3", "colour"},
      {"training.schedule.step_updates=3", "step_updates"},
      {"training.updates=1000000000000000000", "updates"},
      {"data.max_symbols=1000", "max_tokens"},
      {"data.symbols=11", "vocabulary"},
  };
  for (const auto& [assignment, key] : cases) {
    Json json = small_training_json(kSmallLinear);
    ASSERT_TRUE(apply_override(json, assignment).ok()) << assignment;
    if (std::string(key) == "vocabulary") {
      ASSERT_TRUE(apply_override(json, "model.head.classes=13").ok());
      ASSERT_TRUE(apply_override(json, "data.symbols=12").ok());
    }
    const auto config = parse_train_config(json, "c");
    ASSERT_FALSE(config.ok()) << assignment;
    EXPECT_NE(config.error().to_string().find(key), std::string::npos)
        << config.error().to_string();
  }
}

TEST(TrainConfig, NonCausalLayersAreRefused) {
  const auto config = parse_train_config(
      small_training_json(
          R"({"name": "linear_attention", "num_heads": 2, "key_dim": 4, "causal": false})"),
      "c");
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find("not causal"), std::string::npos);
}

TEST(TrainConfig, SoundNeedsAFrontEndAndNothingElseHasOne) {
  const auto text = read_file(TARN_SOURCE_DIR "/experiments/spoken_digits/config.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  Json json = *parse_json(*text, "c");
  const auto config = parse_train_config(json, "c");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->data.kind, data::DataKind::kAudio);
  EXPECT_EQ(to_json(*parse_train_config(to_json(*config), "c")), to_json(*config));
  Json cepstra = json;
  cepstra.set("data", *parse_json(R"({"kind": "an4_mfcc"})", "d"));
  EXPECT_NE(parse_train_config(cepstra, "c").error().message.find("the data is no sound"),
            std::string::npos);
  Json::Object members;
  for (const Json::Member& member : *json.find("model")->as_object()) {
    if (member.first != "frontend") members.push_back(member);
  }
  json.set("model", Json(std::move(members)));
  EXPECT_NE(parse_train_config(json, "c").error().message.find("the model has no frontend"),
            std::string::npos);
}

TEST(TrainConfig, EveryPresetParses) {
  int count = 0;
  const std::filesystem::path presets = std::filesystem::path(TARN_SOURCE_DIR) / "configs";
  for (const auto& entry : std::filesystem::directory_iterator(presets)) {
    if (entry.path().extension() != ".json") continue;
    const auto text = read_file(entry.path().string(), 1 << 20);
    ASSERT_TRUE(text.ok());
    const auto json = parse_json(*text, entry.path().string());
    ASSERT_TRUE(json.ok()) << json.error().to_string();
    const auto config = parse_train_config(*json, entry.path().string());
    EXPECT_TRUE(config.ok()) << config.error().to_string();
    ++count;
  }
  EXPECT_GE(count, 17);
}

TEST(Schedule, WarmsUpThenFollowsItsShape) {
  ScheduleConfig config;
  config.warm_up = 4;
  EXPECT_EQ(schedule_factor(config, 0, 100), 0.25);
  EXPECT_EQ(schedule_factor(config, 3, 100), 1.0);
  EXPECT_EQ(schedule_factor(config, 99, 100), 1.0);
  config.cool_down = 10;
  EXPECT_EQ(schedule_factor(config, 90, 100), 1.0);
  EXPECT_EQ(schedule_factor(config, 95, 100), 0.5);
  EXPECT_EQ(schedule_factor(config, 99, 100), 0.1);
  config.cool_down = 0;
  config.kind = ScheduleKind::kStep;
  config.step_updates = 10;
  config.step_factor = 0.5;
  EXPECT_EQ(schedule_factor(config, 9, 100), 1.0);
  EXPECT_EQ(schedule_factor(config, 10, 100), 0.5);
  EXPECT_EQ(schedule_factor(config, 29, 100), 0.25);
  config.kind = ScheduleKind::kCosine;
  config.final_factor = 0.2;
  EXPECT_EQ(schedule_factor(config, 4, 104), 1.0);
  EXPECT_NEAR(schedule_factor(config, 54, 104), 0.6, 1e-15);
  EXPECT_NEAR(schedule_factor(config, 104, 104), 0.2, 1e-15);
}

std::string plain(const Json& value) {
  return value.as_string() != nullptr ? *value.as_string() : value.dump();
}

/// How a row of docs/training.md begins: key, what it takes, default.
std::string documented_row(const JsonKey& key) {
  std::string takes;
  for (const std::string& choice : key.choices) takes += (takes.empty() ? "" : ", ") + choice;
  if (key.type == "integer" || key.type == "number") {
    takes = key.type + ", " + plain(key.min) + " to " + plain(key.max);
  }
  if (takes.empty()) takes = "object";
  const std::string fallback = key.required ? "required" : plain(key.fallback);
  return "| `" + key.name + "` | " + takes + " | " + fallback + " |";
}

TEST(TrainConfig, EveryKeyOfTrainingIsDocumented) {
  const std::string text = *read_file(TARN_SOURCE_DIR "/docs/training.md", 1 << 20);
  const std::vector<JsonKey> keys = training_keys();
  EXPECT_GT(keys.size(), 20u);
  for (const JsonKey& key : keys) {
    // A value of its own kind: the row says what it is.
    const std::string row = key.type == "value" ? "| `" + key.name + "` |" : documented_row(key);
    EXPECT_NE(text.find("\n" + row), std::string::npos) << row;
  }
  size_t rows = 0;
  for (size_t at = text.find("\n| `"); at != std::string::npos; at = text.find("\n| `", at + 1))
    ++rows;
  EXPECT_EQ(rows, keys.size()) << "docs/training.md has rows of other keys";
}

}  // namespace
}  // namespace tarn::train
