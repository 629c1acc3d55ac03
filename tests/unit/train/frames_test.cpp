// Training over frames: the loss, packed batches, masks, and whole runs.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "model/model.h"
#include "train/ctc_loss.h"
#include "train/decoder.h"
#include "train/frame_batches.h"
#include "train/torch_threads.h"
#include "train/trainer.h"
#include "unit/data/an4_folder.h"
#include "unit/train/test_models.h"

namespace tarn::train {
namespace {

namespace fs = std::filesystem;

TEST(CtcLoss, IsTheSumOverAllPaths) {
  // Rows of p = {blank, a, b}; the label a in two rows: a a, a -, - a. No path writes a a in two rows.
  const std::vector<double> p = {0.5, 0.3, 0.2, 0.1, 0.6, 0.3, 0.7, 0.2, 0.1, 0.4, 0.4, 0.2};
  at::Tensor outputs = at::empty({4, 3});
  for (size_t i = 0; i < p.size(); ++i) {
    outputs.mutable_data_ptr<float>()[i] = static_cast<float>(std::log(p[i])) + 3.0f;
  }
  Batch batch;
  batch.count = 2;
  batch.lengths = {2, 2};
  batch.labels = {{1}, {1, 1}};
  const double likelihood = 0.3 * 0.6 + 0.3 * 0.1 + 0.5 * 0.6;
  std::vector<float> gradient(12, NAN);
  EXPECT_NEAR(ctc_nats(batch, outputs, 2.0, gradient.data()), -std::log(likelihood), 1e-6);
  EXPECT_EQ(ctc_nats(batch, outputs, 2.0, nullptr), ctc_nats(batch, outputs, 1.0, gradient.data()));
  ctc_nats(batch, outputs, 2.0, gradient.data());
  // d/d logit = p − p(class on the paths of the label).
  EXPECT_NEAR(gradient[0], 2.0 * (0.5 - 0.5 * 0.6 / likelihood), 1e-5);
  EXPECT_NEAR(gradient[2], 2.0 * 0.2, 1e-5);
  EXPECT_NEAR(gradient[4], 2.0 * (0.6 - (0.3 + 0.5) * 0.6 / likelihood), 1e-5);
  for (size_t i = 6; i < 12; ++i) EXPECT_EQ(gradient[i], 0.0f) << "an impossible sequence";
}

/// The part of a packed batch that is sequence i.
Batch alone(const Batch& batch, const model::ModelConfig& config, size_t i) {
  Batch single;
  single.count = 1;
  single.lengths = {batch.lengths[i]};
  single.labels = {batch.labels[i]};
  int64_t first = 0;
  for (size_t j = 0; j < i; ++j) first += batch.lengths[j];
  const auto begin = batch.frames.begin() + first * config.input_width();
  single.frames.assign(begin, begin + batch.lengths[i] * config.input_width());
  return single;
}

TEST(FrameBatches, TrainingIsTheRuntimesModelAndBatchMatesChangeNothing) {
  const auto config = parse_model(small_frames_text("sinusoidal"));
  const auto pool = torch_thread_pool(1);
  ParameterBuffers parameters = create_parameters(config, 5);
  const auto model = model::Model::random(config, 5, {});
  const Decoder decoder(config, parameters, DType::kF32, pool.get());
  const Batch batch = random_frames(config, {9, 31, 6});
  const c10::NoGradGuard no_gradients;
  const at::Tensor together = decoder.forward(batch);
  int64_t row = 0;
  double nats = 0.0;
  for (size_t i = 0; i < 3; ++i) {
    const Batch single = alone(batch, config, i);
    const at::Tensor outputs = decoder.forward(single);
    const float* got = outputs.const_data_ptr<float>();
    const float* packed = together.const_data_ptr<float>() + row * 7;
    EXPECT_TRUE(std::equal(got, got + outputs.numel(), packed)) << i;
    nats += decoder.evaluate(single).nats;

    const int64_t begin = 0;
    std::vector<float> runtime(static_cast<size_t>(outputs.numel()), NAN);
    model::TokenBatch tokens;
    tokens.sequences = {1, &begin, single.lengths.data()};
    tokens.frames = single.frames.data();
    Arena arena;
    model->forward(tokens, {}, mixers::Form::kParallel, model::Outputs::kAllRows, runtime.data(),
                   nullptr, arena);
    for (size_t c = 0; c < runtime.size(); ++c) ASSERT_NEAR(runtime[c], got[c], 2e-5) << i;
    row += batch.lengths[i];
  }
  EXPECT_NEAR(decoder.evaluate(batch).nats, nats, 1e-9 * nats);
}

TEST(FrameBatches, MasksHideRunsAndRepeatThemselves) {
  constexpr int64_t kLength = 200, kChannels = 4, kFeatures = 12;
  const std::vector<float> ones(kLength * kFeatures, 1.0f);
  const auto masked = [&](const AugmentConfig& augment, uint64_t stream) {
    std::vector<float> frames = ones;
    mask_frames(augment, kChannels, 3 * kChannels, 1, stream, frames);
    return frames;
  };
  EXPECT_EQ(masked({}, 1), ones);
  const AugmentConfig time{.time_masks = 2, .time_share = 0.1};
  const AugmentConfig feature{.feature_masks = 1, .feature_width = 2};
  EXPECT_EQ(masked(time, 3), masked(time, 3));
  EXPECT_NE(masked(time, 3), masked(time, 4));
  int64_t most_rows = 0, most_channels = 0;
  for (uint64_t stream = 0; stream < 200; ++stream) {
    const std::vector<float> rows = masked(time, stream);
    int64_t hidden = 0;
    for (int64_t t = 0; t < kLength; ++t) {
      const auto begin = rows.begin() + t * kFeatures;
      const auto zeros = std::count(begin, begin + kFeatures, 0.0f);
      ASSERT_TRUE(zeros == 0 || zeros == kFeatures);
      hidden += zeros > 0 ? 1 : 0;
    }
    most_rows = std::max(most_rows, hidden);
    const std::vector<float> columns = masked(feature, stream);
    for (int64_t t = 1; t < kLength; ++t) {
      ASSERT_TRUE(std::equal(columns.begin(), columns.begin() + kFeatures,
                             columns.begin() + t * kFeatures));
    }
    ASSERT_TRUE(
        std::equal(columns.begin(), columns.begin() + kChannels, columns.begin() + kChannels));
    most_channels = std::max<int64_t>(
        most_channels, std::count(columns.begin(), columns.begin() + kChannels, 0.0f));
  }
  EXPECT_GT(most_rows, 30);
  EXPECT_LE(most_rows, 40);
  EXPECT_EQ(most_channels, 2);
}

class FramesRun : public testing::Test {
 protected:
  FramesRun()
      : out_(fs::temp_directory_path() / ("tarn_frames_" + std::to_string(getpid()))),
        pool_(torch_thread_pool(1)) {
    fs::remove_all(out_);
  }
  ~FramesRun() override { fs::remove_all(out_); }

  static Json config() {
    Result<Json> json = parse_json(R"({"model": )" + small_frames_text("sinusoidal") + R"(,
        "data": {"kind": "an4_mfcc", "holdout_speakers": 2},
        "training": {"seed": 3, "batch_size": 2, "updates": 60, "log_every": 5,
            "optimiser": {"kind": "adamw", "learning_rate": 0.005},
            "augment": {"time_masks": 1, "time_share": 0.2, "feature_masks": 1,
                        "feature_width": 3}}})",
                                   "test");
    TARN_CHECK(json.ok());
    return *json;
  }
  Result<TrainResult> run(const Json& json, const std::string& name, bool resume = false) {
    TARN_ASSIGN(const TrainConfig parsed, parse_train_config(json, "test"));
    TrainOptions options;
    options.data_directory = folder_.path();
    options.out_directory = (out_ / name).string();
    options.resume = resume;
    return train(parsed, options, pool_.get());
  }
  std::string error(const Json& json) {
    const auto result = run(json, "refused");
    return result.ok() ? "" : result.error().to_string();
  }
  std::string file(const std::string& name) const {
    const auto content = read_file((out_ / name).string(), 1 << 24);
    TARN_CHECK(content.ok());
    return *content;
  }
  std::vector<Json> events(const std::string& name, const char* kind) const {
    std::vector<Json> found;
    std::istringstream lines(file(name + "/log.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto event = parse_json(line, "log");
      TARN_CHECK(event.ok());
      if (*event->find("event") == Json(kind)) found.push_back(*event);
    }
    return found;
  }

  data::An4Folder folder_;
  fs::path out_;
  std::unique_ptr<ThreadPool> pool_;
};

TEST_F(FramesRun, LearnsReportsPhoneErrorsAndExportsTheirNames) {
  const auto result = run(config(), "whole");
  ASSERT_TRUE(result.ok()) << result.error().to_string();
  const std::vector<Json> train = events("whole", "train");
  EXPECT_LT(*train.back().find("bits_per_dim")->as_double(),
            0.5 * *train.front().find("bits_per_dim")->as_double());
  EXPECT_GT(*train.back().find("epoch_seconds")->as_double(), 0.0);
  EXPECT_LT(*events("whole", "evaluate").back().find("valid_phone_error_rate")->as_double(), 0.6);
  const auto exported = model::Model::load((out_ / "whole").string());
  ASSERT_TRUE(exported.ok()) << exported.error().to_string();
  EXPECT_EQ((*exported)->config().head.symbols,
            (std::vector<std::string>{"AH", "EH", "G", "OW", "S", "Y"}));
}

TEST_F(FramesRun, ResumesBitForBit) {
  ASSERT_TRUE(run(config(), "whole").ok());
  Json json = config();
  Json training = *json.find("training");
  training.set("updates", 25);
  json.set("training", training);
  ASSERT_TRUE(run(json, "pieces").ok());
  ASSERT_TRUE(run(config(), "pieces", true).ok());
  EXPECT_EQ(file("pieces/model.safetensors"), file("whole/model.safetensors"));
}

TEST_F(FramesRun, ModelAndDataMustFit) {
  const auto with = [](const char* part, const char* key, const char* value) {
    Json json = config();
    Json object = *json.find(part);
    object.set(key, *parse_json(value, "test"));
    json.set(part, object);
    return json;
  };
  EXPECT_NE(error(with("model", "head", R"({"kind": "ctc", "classes": 8})"))
                .find("model.head.classes: is 8, but the data has 7 labels"),
            std::string::npos);
  EXPECT_NE(error(with("model", "frames", R"({"features": 38})"))
                .find("model.frames.features: is 38, but the data has frames of 39 numbers"),
            std::string::npos);
  EXPECT_NE(error(with("model", "max_tokens", "5")).find("model.max_tokens: is 5, but utterance"),
            std::string::npos);
  EXPECT_NE(
      error(with("model", "head",
                 R"({"kind": "ctc", "classes": 7, "symbols": ["1", "2", "3", "4", "5", "6"]})"))
          .find("model.head.symbols: are not the names"),
      std::string::npos);
  Json json = config();
  json.set("data", *parse_json(R"({"kind": "copy"})", "test"));
  EXPECT_NE(error(json).find("the model is over frames, but the data has symbols"),
            std::string::npos);
  json = small_training_json(kSmallLinear);
  json.set("data", *config().find("data"));
  EXPECT_NE(error(json).find("the data is frames, but the model is over symbols"),
            std::string::npos);
  json = small_training_json(kSmallLinear);
  Json training = *json.find("training");
  training.set("augment", Json::Object{{"time_masks", 1}, {"time_share", 0.1}});
  json.set("training", training);
  EXPECT_NE(error(json).find("training.augment is for data that is frames"), std::string::npos);
}

}  // namespace
}  // namespace tarn::train
