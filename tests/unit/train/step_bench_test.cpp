#include "train/step_bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "train/torch_threads.h"
#include "unit/train/test_models.h"

namespace tarn::train {
namespace {

TrainConfig small_config() {
  const auto config = parse_train_config(small_training_json(kSmallLinear), "test");
  TARN_CHECK(config.ok());
  return *config;
}

TEST(StepBench, PartsAddUpToTheStepsAndEachIsCalledAsOftenAsItsPlaceInTheModelSays) {
  const TrainConfig config = small_config();
  const auto pool = torch_thread_pool(1);
  const Batch batch = random_batch(config.model, 4, 17, 1);
  StepBenchOptions options;
  options.steps = 3;
  int64_t asked = 0;
  const auto result = bench_steps(
      config,
      [&](int64_t step) -> const Batch& {
        EXPECT_EQ(step, asked++);
        return batch;
      },
      options, pool.get());
  ASSERT_TRUE(result.ok()) << result.error().to_string();
  EXPECT_EQ(asked, 5);  // two to warm up
  ASSERT_EQ(result->step_ms.size(), 3u);
  EXPECT_LT(result->last_bits, result->first_bits);
  double seconds = 0.0;
  for (const PartTimes::Part& part : result->parts) {
    EXPECT_GE(part.seconds, 0.0) << part.name;
    seconds += part.seconds;
  }
  const double steps_ms = std::accumulate(result->step_ms.begin(), result->step_ms.end(), 0.0);
  EXPECT_NEAR(1e3 * seconds, steps_ms, 1e-9 * steps_ms);
  EXPECT_EQ(result->parts.back().name, "other");
  const auto calls = [&](const std::string& name) {
    const auto part = std::ranges::find(result->parts, name, &PartTimes::Part::name);
    return part == result->parts.end() ? 0 : part->calls;
  };
  const auto layers = static_cast<int64_t>(config.model.layers.size());
  EXPECT_EQ(calls("mlp"), 3 * layers);
  EXPECT_EQ(calls("mlp backward"), 3 * layers);
  EXPECT_EQ(calls("operator"), 3 * layers);
  EXPECT_EQ(calls("operator backward"), 3 * layers);
  EXPECT_EQ(calls("projections"), 3 * 2 * layers);
  EXPECT_EQ(calls("norms backward"), 3 * (2 * layers + 1));
  EXPECT_EQ(calls("optimiser"), 3);
  // 4·17 rows through 24 -> 40 -> 24.
  const auto mlp = std::ranges::find(result->parts, "mlp", &PartTimes::Part::name);
  EXPECT_EQ(mlp->flops, 3.0 * static_cast<double>(layers) * 2.0 * (4 * 17) * (2 * 24 * 40));
}

TEST(StepBench, RefusesToTimeStepsThatAreNotFinite) {
  TrainConfig config = small_config();
  config.model.embedding_scale = 1e38f;  // norms overflow
  const auto pool = torch_thread_pool(1);
  const Batch batch = random_batch(config.model, 2, 9, 1);
  const auto result = bench_steps(
      config, [&](int64_t) -> const Batch& { return batch; }, {}, pool.get());
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("not finite"), std::string::npos);
}

TEST(StepBench, JsonHasTheMedianAndTheShares) {
  StepBenchResult result;
  result.batch = 2;
  result.tokens = 50;
  result.step_ms = {4.0, 1.0, 3.0, 2.0};
  result.f32_flops_per_second = 1e9;
  result.parts = {{"mlp", 8, 0.004, 2e6, DType::kF32}, {"other", 4, 0.006, 0.0, DType::kF32}};
  EXPECT_EQ(result.median_ms(), 2.5);
  EXPECT_EQ(result.tokens_per_second(), 40'000.0);
  const Json json = to_json(result);
  EXPECT_EQ(*json.find("ms_per_step")->find("min"), Json(1.0));
  EXPECT_EQ(*json.find("ms_per_step")->find("max"), Json(4.0));
  const Json& mlp = (*json.find("parts")->as_array())[0];
  EXPECT_DOUBLE_EQ(*mlp.find("share")->as_double(), 0.4);
  EXPECT_DOUBLE_EQ(*mlp.find("gflops_per_second")->as_double(), 0.5);
  EXPECT_DOUBLE_EQ(*mlp.find("percent_of_roof")->as_double(), 50.0);
  EXPECT_EQ(*mlp.find("calls_per_step"), Json(2.0));
}

TEST(RandomBatch, InputsAreTheTargetsOneEarlier) {
  const TrainConfig config = small_config();
  const Batch batch = random_batch(config.model, 3, 11, 7);
  ASSERT_EQ(batch.inputs.size(), 33u);
  EXPECT_EQ(batch.counted, 33);
  for (size_t row = 0; row < 33; ++row) {
    EXPECT_EQ(batch.inputs[row], row % 11 == 0 ? config.model.start_token : batch.targets[row - 1]);
    EXPECT_LT(batch.targets[row], config.model.head.classes);
  }
}

}  // namespace
}  // namespace tarn::train
