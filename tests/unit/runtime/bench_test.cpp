#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "base/json.h"
#include "base/threads.h"
#include "runtime/crossover.h"
#include "runtime/generation_bench.h"
#include "runtime/model_folder.h"
#include "runtime/operator_bench.h"
#include "runtime/operator_call.h"
#include "runtime/process_memory.h"
#include "runtime/state.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

constexpr OperatorPass kPasses[] = {OperatorPass::kForward, OperatorPass::kBackward,
                                    OperatorPass::kForwardBackward, OperatorPass::kStep};

OperatorBenchOptions small_case(const mixers::MixerDef& mixer, OperatorPass pass) {
  OperatorBenchOptions options;
  options.pass = pass;
  options.config = sized_config(mixer, 2, 5, 3);
  options.batch = 2;
  options.tokens = 33;
  options.repeats = 3;
  return options;
}

TEST(OperatorBench, EveryMixerPassesTheCheckInEveryForm) {
  ThreadPool pool(2);
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (mixer->step == nullptr) continue;  // no operator, or whole sequences only
    for (OperatorPass pass : kPasses) {
      const Result<double> ratio = check_operator(*mixer, small_case(*mixer, pass), &pool);
      ASSERT_TRUE(ratio.ok()) << mixer->name << ": " << ratio.error().to_string();
      EXPECT_GT(ratio.value(), 0.0) << "an exact match means that nothing was compared";
    }
  }
}

/// The first mechanism, with its kernels made wrong in one place each.
const mixers::MixerDef& honest() { return *mixers::all_mixers().front(); }
void wrong_chunk(const mixers::OpArgs<float>& args) noexcept {
  honest().chunk(args);
  *args.out.at(3, 0) *= 1.01f;
}
void wrong_step(const mixers::OpArgs<float>& args) noexcept {
  honest().step(args);
  if (args.sequences.begin[0] == 20) *args.out.at(20, 0) += 0.5f;
}
void wrong_backward(const mixers::OpBackwardArgs& args) noexcept {
  honest().backward(args);
  *args.dinputs[1].at(2, 1) += 1.0f;
}

TEST(OperatorBench, WrongKernelsAreNotTimed) {
  ThreadPool pool(1);
  mixers::MixerDef wrong = honest();
  wrong.chunk = wrong_chunk;
  EXPECT_FALSE(check_operator(wrong, small_case(wrong, OperatorPass::kForward), &pool).ok());
  wrong = honest();
  wrong.step = wrong_step;
  EXPECT_FALSE(check_operator(wrong, small_case(wrong, OperatorPass::kStep), &pool).ok());
  EXPECT_TRUE(check_operator(wrong, small_case(wrong, OperatorPass::kForward), &pool).ok());
  wrong = honest();
  wrong.backward = wrong_backward;
  EXPECT_FALSE(check_operator(wrong, small_case(wrong, OperatorPass::kBackward), &pool).ok());
  wrong.backward = nullptr;
  const auto missing = check_operator(wrong, small_case(wrong, OperatorPass::kBackward), &pool);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kUnsupported);
}

TEST(OperatorBench, FiguresAreOrderedAndCounted) {
  ThreadPool pool(1);
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (mixer->step == nullptr) continue;  // no operator, or whole sequences only
    for (OperatorPass pass : kPasses) {
      const auto result = bench_operator(*mixer, small_case(*mixer, pass), &pool);
      ASSERT_TRUE(result.ok()) << mixer->name << ": " << result.error().to_string();
      EXPECT_GT(result.value().ms_min, 0);
      EXPECT_LE(result.value().ms_min, result.value().ms_median);
      EXPECT_LE(result.value().ms_median, result.value().ms_max);
      const int64_t rows = pass == OperatorPass::kStep ? 2 : 66;
      const OperatorBenchOptions options = small_case(*mixer, pass);
      const auto config =
          *mixer->parse_config(*parse_json(options.config, mixer->name), 64, mixer->name);
      const mixers::OpShape shape = mixer->op_shape(*config);
      int64_t values = shape.out_heads * shape.out_dim;
      for (const mixers::OpInput& input : shape.inputs) values += input.heads * input.dim;
      // q and k of 2 x 5, v and out of 2 x 3 values; twice with gradients.
      EXPECT_TRUE(mixer != &honest() || values == 32);
      const bool gradients =
          pass == OperatorPass::kBackward || pass == OperatorPass::kForwardBackward;
      EXPECT_EQ(result.value().tensor_bytes, rows * values * 4 * (gradients ? 2 : 1));
    }
  }
}

TEST(OperatorBench, SizesAreSetWhereAMixerTakesThem) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    SCOPED_TRACE(mixer->name);
    // A mechanism around another one has the sizes of that one.
    const auto sized = [](const Json& json) {
      return json.find("mixer") != nullptr ? *json.find("mixer") : json;
    };
    const Json example = sized(*parse_json(mixer->example_configs().front(), mixer->name));
    const auto chosen = operator_config(*mixer, 0, 0, 0);
    ASSERT_TRUE(chosen.ok()) << chosen.error().to_string();
    const Json config = sized(*parse_json(*chosen, mixer->name));
    const auto asked = operator_config(*mixer, 3, 0, 0);
    if (example.find("num_heads") == nullptr) {
      const char* width = example.find("hidden_dim") != nullptr ? "hidden_dim" : "inner_dim";
      EXPECT_EQ(*config.find(width), Json(512));
      ASSERT_FALSE(asked.ok());
      EXPECT_NE(asked.error().to_string().find("num_heads"), std::string::npos);
    } else {
      EXPECT_EQ(*config.find("num_heads"), Json(8));
      EXPECT_EQ(*config.find("key_dim"), Json(64));
      ASSERT_TRUE(asked.ok()) << asked.error().to_string();
      EXPECT_EQ(*sized(*parse_json(*asked, mixer->name)).find("num_heads"), Json(3));
    }
  }
}

TEST(OperatorBench, TheCheckRefusesWhatNoMachineHolds) {
  for (const char* name : {"linear_attention", "lstm"}) {
    const mixers::MixerDef& mixer = *mixers::find_mixer(name, "").value();
    OperatorBenchOptions options = small_case(mixer, OperatorPass::kForward);
    options.config = std::string(name) == "lstm"
                         ? R"({"hidden_dim": 65536})"
                         : R"({"num_heads": 4096, "key_dim": 4096, "value_dim": 4096})";
    const auto result = check_operator(mixer, options, nullptr);
    ASSERT_FALSE(result.ok()) << name;
    EXPECT_EQ(result.error().code, ErrorCode::kResource);
  }
}

TEST(OperatorBench, RefusesWhatNoMachineHolds) {
  OperatorBenchOptions options = small_case(honest(), OperatorPass::kForward);
  options.tokens = int64_t{1} << 40;
  options.batch = int64_t{1} << 40;
  const auto result = bench_operator(honest(), options, nullptr);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kResource);
}

TEST(OperatorBench, RandomInputsHaveTheirRanges) {
  std::vector<float> values(40'001);
  fill_random(std::span<float>(values), mixers::OpInput::Range::kNormal, 3, 0);
  double sum = 0, squares = 0;
  for (float value : values) {
    sum += static_cast<double>(value);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  const double n = static_cast<double>(values.size());
  // Five standard errors of a mean, and of a variance (at most sqrt(2/n) for these tails).
  EXPECT_LT(std::abs(sum / n), 5 / std::sqrt(n));
  EXPECT_LT(std::abs(squares / n - 1), 5 * std::sqrt(2 / n));
  fill_random(std::span<float>(values), mixers::OpInput::Range::kLogDecay, 3, 0);
  for (float value : values) ASSERT_TRUE(value <= 0 && value > -1);
}

TEST(OperatorBench, StatesFilledInPiecesAreFilledAsAWhole) {
  const std::vector<mixers::StateSpec> specs = {{"s", {700'001}, 0.0f, true}};
  OperatorState state(specs, 2, 1);
  ASSERT_TRUE(state.randomise(5, [] { return false; }));
  std::vector<float> whole(700'001);
  for (size_t i = 0; i < 2; ++i) {
    fill_random(std::span<float>(whole), mixers::OpInput::Range::kUnitInterval, 5,
                static_cast<uint32_t>(i + 1));
    const float* filled = state.refs().tensors[0][i];
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), filled)) << i;
  }
  EXPECT_FALSE(state.randomise(5, [] { return true; }));
}

TEST(OperatorBench, IsStoppedBetweenCalls) {
  for (const OperatorPass pass : {OperatorPass::kForward, OperatorPass::kStep}) {
    std::atomic<bool> cancel{false};
    OperatorBenchOptions options = small_case(*mixers::all_mixers().front(), pass);
    options.repeats = 1'000'000'000;  // ends by the flag alone, however slow the machine is
    options.cancel = &cancel;
    std::thread watcher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      cancel.store(true);
    });
    const auto result = bench_operator(*mixers::all_mixers().front(), options, nullptr);
    watcher.join();
    ASSERT_FALSE(result.ok()) << "seconds of work were not stopped after 50 ms";
    EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  }
}

TEST(Crossover, IsWhereTheGrowingStatePassesForGood) {
  const std::vector<int64_t> tokens = {10, 20, 30, 40};
  EXPECT_DOUBLE_EQ(crossing(tokens, {5, 5, 5, 5}, {1, 3, 7, 9}), 25);
  EXPECT_DOUBLE_EQ(crossing(tokens, {5, 5, 5, 5}, {6, 3, 7, 9}), 25) << "an early spike is noise";
  EXPECT_DOUBLE_EQ(crossing(tokens, {5, 5, 5, 5}, {6, 7, 8, 9}), 10);
  EXPECT_DOUBLE_EQ(crossing(tokens, {5, 5, 5, 5}, {1, 2, 3, 4}), -1);
}

TEST(Crossover, PredictionIsThePapersFormula) {
  const mixers::MixerDef* bounded = nullptr;
  const mixers::MixerDef* growing = nullptr;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (!mixers::has_operator(*mixer)) continue;
    if (mixer->bounded_state && bounded == nullptr) bounded = mixer;
    if (!mixer->bounded_state && growing == nullptr) growing = mixer;
  }
  ASSERT_TRUE(bounded != nullptr && growing != nullptr);
  CrossoverOptions options;
  options.num_heads = 2;
  options.key_dim = 8;
  options.value_dim = 6;
  options.batch = 1;
  options.repeats = 1;
  options.tokens = {1, 2, 4, 8, 16};
  const auto result = measure_crossover(*bounded, *growing, options, nullptr);
  ASSERT_TRUE(result.ok()) << result.error().to_string();
  const double wanted = (8.0 * 6.0 + 8.0) / (8.0 + 6.0);
  EXPECT_DOUBLE_EQ(result.value().predicted_tokens, wanted);
  EXPECT_DOUBLE_EQ(result.value().memory_tokens, wanted) << "both state sizes are straight lines";
  EXPECT_FALSE(measure_crossover(*growing, *bounded, options, nullptr).ok());
  const std::atomic<bool> cancel{true};
  options.cancel = &cancel;
  const auto stopped = measure_crossover(*bounded, *growing, options, nullptr);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
}

TEST(GenerationBench, TimesGrowingStatesAlsoWithoutACache) {
  ThreadPool pool(1);
  GenerationBenchOptions options;
  int64_t expected_rows = 0;
  for (const NamedMixers& stack : causal_stacks(true)) {
    options.models.push_back({stack.name, tiny_model(stack.layers, {.max_tokens = 9})});
    const auto& model = *options.models.back().model;
    const bool grows =
        SequenceState::used_bytes_at(model, 1) != SequenceState::used_bytes_at(model, 2);
    expected_rows += grows ? 2 : 1;
  }
  options.batches = {1, 3};
  options.repeats = 2;
  options.timed_positions = 3;
  const auto rows = bench_generation(options, &pool);
  ASSERT_TRUE(rows.ok()) << rows.error().to_string();
  ASSERT_EQ(static_cast<int64_t>(rows.value().size()), expected_rows);
  for (const GenerationBenchRow& row : rows.value()) {
    ASSERT_EQ(row.figures.size(), 2u);
    EXPECT_EQ(row.figures[1].batch, 3);
    EXPECT_EQ(row.integrated, row.mode == GenerateMode::kParallel);
    EXPECT_EQ(row.state_bytes_per_sequence > 0, !row.integrated);
    for (const auto& figures : row.figures) {
      EXPECT_GT(figures.sequences_per_second_min, 0);
      EXPECT_LE(figures.sequences_per_second_min, figures.sequences_per_second);
      EXPECT_LE(figures.sequences_per_second, figures.sequences_per_second_max);
    }
  }
}

/// A batch that would not fit is refused before anything is timed.
TEST(GenerationBench, RefusesWhatDoesNotFitBeforeTheFirstRun) {
  GenerationBenchOptions options;
  for (const NamedMixers& stack : causal_stacks(true)) {
    options.models.push_back({stack.name, tiny_model(stack.layers, {.max_tokens = 8})});
  }
  options.batches = {1, int64_t{1} << 40};
  int64_t runs = 0;
  options.progress = [&runs](int64_t, int64_t) { ++runs; };
  const auto rows = bench_generation(options, nullptr);
  ASSERT_FALSE(rows.ok());
  EXPECT_EQ(rows.error().code, ErrorCode::kResource);
  EXPECT_EQ(runs, 0);
}

TEST(GenerationBench, IntegratesImagesFromFewerTokens) {
  GenerationBenchOptions options;
  for (const NamedMixers& stack : causal_stacks(true)) {
    options.models.push_back(
        {stack.name, tiny_model(stack.layers, {.max_tokens = 40, .image = true})});
  }
  options.models.push_back(options.models.front());
  options.models.back().baseline = true;
  options.batches = {2};
  options.length = 8;
  options.repeats = 2;
  options.timed_positions = 3;
  const GenerationRoof roof{{1e9, {{"ram_read", INT64_MAX, 1e9}}}, 1e9, 1e9};
  options.roof = &roof;
  int64_t runs = 0;
  options.progress = [&runs](int64_t done, int64_t total) {
    EXPECT_EQ(done, runs++);
    EXPECT_LT(done, total);
  };
  const auto rows = bench_generation(options, nullptr);
  ASSERT_TRUE(rows.ok()) << rows.error().to_string();
  for (const GenerationBenchRow& row : rows.value()) {
    const bool token_by_token =
        row.mode == GenerateMode::kRecurrent && row.bounded_state && !row.baseline;
    EXPECT_TRUE(row.integrated);
    EXPECT_EQ(row.timed_tokens, token_by_token ? 8 : 0) << row.model;
    EXPECT_EQ(row.timed_positions, token_by_token ? 0 : 3) << row.model;
    const auto& figures = row.figures.front();
    // Medians of the same rounds, in different units: an image has 40 tokens, whatever was timed.
    EXPECT_NEAR(figures.tokens_per_second, 40 * figures.sequences_per_second,
                1e-9 * figures.tokens_per_second);
    const bool carries = row.mode == GenerateMode::kRecurrent && row.bounded_state;
    EXPECT_EQ(figures.share.percent() > 0, carries) << row.model;
    EXPECT_EQ(figures.weight_bytes_per_second > 0, carries) << row.model;
  }
  EXPECT_TRUE(rows.value().back().baseline);
}

TEST(GenerationBench, SharesOfTheRoofFollowTheFormula) {
  // Two layers of width 16: 3·2·5 inputs of the operator, 2·5 outputs, 24 hidden, 11 classes.
  const auto parsed =
      parse_json(R"({"name": "linear_attention", "num_heads": 2, "key_dim": 5})", "mixer");
  ASSERT_TRUE(parsed.ok());
  const auto model = tiny_model({*parsed, *parsed}, {.max_tokens = 0});
  const double weights = 2 * (30 * 16 + 16 * 10 + 2 * 24 * 16) + 11 * 16;
  const StepWork work = step_work(*model, kernels::WeightFormat::kInt8, 3, 1);
  EXPECT_EQ(work.product_flops, 2 * 3 * weights);
  EXPECT_EQ(work.weight_bytes, weights);
  EXPECT_EQ(step_work(*model, kernels::WeightFormat::kF32, 3, 1).weight_bytes, 4 * weights);
  EXPECT_EQ(work.operator_flops, 2 * 3 * 4 * 2 * 5 * 5);
  EXPECT_EQ(work.state_bytes, 2 * 3 * 4 * 2 * (5 * 5 + 5));
  const int64_t held = static_cast<int64_t>(work.weight_bytes + work.state_bytes);
  const GenerationRoof roof{
      {100, {{"l2_read", held - 1, 1000}, {"llc_read", held, 10}, {"ram_read", INT64_MAX, 1}}},
      0,
      200};
  const StepShare share = step_share(roof, kernels::WeightFormat::kInt8, work, 50);
  EXPECT_DOUBLE_EQ(share.arithmetic_percent,
                   100 * (work.product_flops / 200 + work.operator_flops / 100) / 50);
  EXPECT_DOUBLE_EQ(share.memory_percent,
                   100 * (work.weight_bytes + 2 * work.state_bytes) / 10 / 50);
  EXPECT_DOUBLE_EQ(share.percent(), share.arithmetic_percent + share.memory_percent);
  EXPECT_EQ(step_share(roof, kernels::WeightFormat::kBF16, work, 50).percent(), 0)
      << "no such instructions";
}

TEST(ModelFolder, InitialWeightsAreThoseOfTheSeed) {
  const auto model = tiny_model(causal_stacks(true).front().layers, {.seed = 7});
  const std::string folder = (std::filesystem::path(testing::TempDir()) /
                              ("tarn_initial_model_" + std::to_string(getpid())))
                                 .string();
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(write_initial_model(model->config(), 7, DType::kF32, folder).ok());
  const auto loaded = model::Model::load(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_EQ(loaded.value()->fingerprint(), model->fingerprint());
  const Status again = write_initial_model(model->config(), 8, DType::kF32, folder);
  ASSERT_FALSE(again.ok()) << "a model is never overwritten";
  EXPECT_EQ(again.error().code, ErrorCode::kInvalidArgument);
  const auto config = read_model_config(folder + "/config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(model::to_json(config.value()), model::to_json(model->config()));
}

TEST(ProcessMemory, PeakSeesWhatWasTouched) {
  const int64_t before = peak_resident_bytes();
  ASSERT_GT(before, 0);
  {
    // A Buffer, because clang leaves out a vector that only this function sees.
    const Buffer<uint8_t> block = Buffer<uint8_t>::filled(int64_t{64} << 20, 1);
    EXPECT_EQ(block[12345], 1);
  }
  EXPECT_GE(peak_resident_bytes(), int64_t{64} << 20);
}

}  // namespace
}  // namespace tarn::runtime
