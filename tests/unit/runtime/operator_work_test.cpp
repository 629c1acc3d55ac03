#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

#include "model/parameters.h"
#include "runtime/operator_bench.h"
#include "runtime/operator_call.h"
#include "runtime/roof_bench.h"
#include "unit/runtime/tiny_models.h"

namespace tarn::runtime {
namespace {

constexpr double kBytes = 4;
constexpr int64_t kHeads = 2, kKeys = 5, kValues = 3;

OperatorWork work_of(const mixers::MixerDef& mixer, OperatorPass pass, int64_t batch,
                     int64_t tokens) {
  OperatorBenchOptions options;
  options.pass = pass;
  options.config = sized_config(mixer, kHeads, kKeys, kValues);
  options.batch = batch;
  options.tokens = tokens;
  return operator_work(mixer, options).value();
}

/// Values per row, of a state that a step after ten tokens reads and writes, and of parameters.
struct Tables {
  double inputs = 0, out = 0, saved = 0, state = 0, params = 0;
};

Tables tables_of(const mixers::MixerDef& mixer) {
  const Json json = *parse_json(sized_config(mixer, kHeads, kKeys, kValues), mixer.name);
  const auto config = *mixer.parse_config(json, 64, mixer.name);
  const mixers::OpShape shape = mixer.op_shape(*config);
  Tables tables;
  for (const mixers::OpInput& input : shape.inputs) {
    tables.inputs += static_cast<double>(input.heads * input.dim);
  }
  tables.out = static_cast<double>(shape.out_heads * shape.out_dim);
  tables.saved = static_cast<double>(shape.saved_per_row);
  for (const mixers::ParamSpec& spec : shape.params) {
    tables.params += static_cast<double>(model::element_count(spec.shape));
  }
  if (mixer.step_traffic != nullptr) {
    const mixers::StateTraffic traffic = mixer.step_traffic(*config, 10);
    tables.state = traffic.read + traffic.written;
    return tables;
  }
  for (const mixers::StateSpec& spec : mixer.state_specs(*config)) {
    // Fixed: read and written. Growing: eleven entries read, one of them written.
    tables.state +=
        static_cast<double>(model::element_count(spec.shape) * (spec.per_token ? 11 : 2));
  }
  return tables;
}

TEST(OperatorWork, BytesAreThoseOfTheTables) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (!mixers::has_operator(*mixer)) continue;
    SCOPED_TRACE(mixer->name);
    const Tables tables = tables_of(*mixer);
    const double forward = work_of(*mixer, OperatorPass::kForward, 3, 10).bytes;
    EXPECT_DOUBLE_EQ(forward,
                     kBytes * (30 * (tables.inputs + tables.out + tables.saved) + tables.params));
    const double backward = work_of(*mixer, OperatorPass::kBackward, 3, 10).bytes;
    EXPECT_DOUBLE_EQ(backward, kBytes * (30 * (2 * tables.inputs + 2 * tables.out + tables.saved) +
                                         3 * tables.params));
    EXPECT_DOUBLE_EQ(work_of(*mixer, OperatorPass::kForwardBackward, 3, 10).bytes,
                     forward + backward);
    const double step = work_of(*mixer, OperatorPass::kStep, 3, 10).bytes;
    EXPECT_DOUBLE_EQ(step,
                     kBytes * (3 * (tables.inputs + tables.out + tables.state) + tables.params));
  }
}

TEST(OperatorWork, BytesOfLinearAttention) {
  const mixers::MixerDef& mixer = *mixers::all_mixers().front();
  // Per row and head q, k of 5, v, out of 3 and one saved value; the state K·V + K, in and out.
  const double inputs = kHeads * (2 * kKeys + kValues), out = kHeads * kValues, saved = kHeads;
  EXPECT_DOUBLE_EQ(work_of(mixer, OperatorPass::kForward, 3, 10).bytes,
                   kBytes * 30 * (inputs + out + saved));
  EXPECT_DOUBLE_EQ(work_of(mixer, OperatorPass::kStep, 3, 10).bytes,
                   kBytes * 3 * (inputs + out + kHeads * 2 * (kKeys * kValues + kKeys)));
}

/// Entries of keys and values that a step after `tokens` tokens reads and writes, per head of both.
mixers::StateTraffic entries_of(const char* name, const char* config, int64_t tokens) {
  const mixers::MixerDef& mixer = *mixers::find_mixer(name, "").value();
  const auto parsed = mixer.parse_config(*parse_json(config, ""), 64, "").value();
  const mixers::OpShape shape = mixer.op_shape(*parsed);
  const auto entry =
      static_cast<double>(shape.inputs[1].heads * (shape.inputs[1].dim + shape.inputs[2].dim));
  const mixers::StateTraffic traffic = mixer.step_traffic(*parsed, tokens);
  return {traffic.read / entry, traffic.written / entry};
}

TEST(OperatorWork, AStepCountsWhatItsPatternShows) {
  const auto expect = [](const char* name, const char* config, int64_t tokens, double read,
                         double written) {
    SCOPED_TRACE(std::string(name) + " after " + std::to_string(tokens));
    const mixers::StateTraffic entries = entries_of(name, config, tokens);
    EXPECT_DOUBLE_EQ(entries.read, read);
    EXPECT_DOUBLE_EQ(entries.written, written);
  };
  const char* window = R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "window": 8, "sinks": 2})";
  expect("sliding_window_attention", window, 1, 1, 2);  // a sink is also in the window
  expect("sliding_window_attention", window, 5, 5, 1);
  expect("sliding_window_attention", window, 1000, 9, 1);
  const char* strided = R"({"num_heads": 2, "key_dim": 5, "stride": 10})";
  expect("strided_sparse_attention", strided, 4, 4, 1);
  expect("strided_sparse_attention", strided, 1005, 9 + 100, 1);
  // Token 1005 is the second of block 251: the window of 2 blocks, the first block, 3 random ones.
  const char* blocks = R"({"num_heads": 1, "key_dim": 5, "block_size": 4, "window_blocks": 2,
                           "global_blocks": 1, "random_blocks": 3})";
  expect("block_sparse_attention", blocks, 1005, 4 + 1 + 4 + 3 * 4, 1);
  const char* compressive = R"({"num_heads": 2, "key_dim": 5, "window": 8, "compression": 3,
                                "memory": 4})";
  expect("compressive_attention", compressive, 7, 7, 1);
  expect("compressive_attention", compressive, 9, 9, 1);
  expect("compressive_attention", compressive, 10, 1 + 7 + 3, 2);  // the first block is complete
  expect("compressive_attention", compressive, 999, 4 + 9, 1);
}

TEST(OperatorWork, AStepTouchesNoMoreThanTheState) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (mixer->step_traffic == nullptr) continue;
    SCOPED_TRACE(mixer->name);
    for (const std::string& text : mixer->example_configs()) {
      const auto config = mixer->parse_config(*parse_json(text, ""), 64, "").value();
      if (mixer->state_specs(*config).empty()) continue;
      for (int64_t tokens : {0, 1, 10, 1000}) {
        double fixed = 0, entry = 0;
        for (const mixers::StateSpec& spec : mixer->state_specs(*config)) {
          (spec.per_token ? entry : fixed) += static_cast<double>(model::element_count(spec.shape));
        }
        const mixers::StateTraffic traffic = mixer->step_traffic(*config, tokens);
        EXPECT_GE(traffic.read, 0);
        EXPECT_LE(traffic.read, fixed + entry * static_cast<double>(tokens));
        EXPECT_GT(traffic.written, 0);
        EXPECT_LE(traffic.written, fixed + entry);
      }
    }
  }
}

TEST(OperatorWork, SharedKeysAreReadOnce) {
  const char* one = R"({"num_heads": 8, "num_kv_heads": 1, "key_dim": 5, "block_size": 4,
                        "random_blocks": 3})";
  const char* each = R"({"num_heads": 8, "key_dim": 5, "block_size": 4, "random_blocks": 3})";
  const double shared = entries_of("block_sparse_attention", one, 4000).read;
  const double own = entries_of("block_sparse_attention", each, 4000).read;
  EXPECT_GT(shared, own);              // heads draw different blocks
  EXPECT_LE(shared, own + 7 * 3 * 4);  // of the same window
}

TEST(OperatorWork, HashedAttentionCountsWhatItFinds) {
  const mixers::MixerDef& mixer = *mixers::find_mixer("lsh_attention", "").value();
  const auto parsed =
      mixer
          .parse_config(*parse_json(R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "rounds": 2,
                                          "num_buckets": 8, "chunk": 4})",
                                    ""),
                        64, "")
          .value();
  // 16 tokens in 8 buckets: two keys per round, all buckets looked at, of 2 heads.
  EXPECT_DOUBLE_EQ(mixer.step_traffic(*parsed, 16).read, 2 * (2 * 2 * (5 + 3) + 2 * 16));
  // Of many tokens a chunk is found after chunk · buckets of them.
  EXPECT_DOUBLE_EQ(mixer.step_traffic(*parsed, 4096).read, 2 * (2 * 4 * (5 + 3) + 2 * 32));
  EXPECT_DOUBLE_EQ(mixer.step_traffic(*parsed, 4096).written, 2 * (5 + 3 + 2));
}

TEST(OperatorState, TensorsOfSymbolsHoldSymbols) {
  OperatorState state({{"bucket", {3}, 0.0f, true, 6}}, 1, 100);
  ASSERT_TRUE(state.randomise(1, [] { return false; }));
  std::array<int, 6> seen = {};
  for (int64_t i = 0; i < 300; ++i) {
    const float value = state.refs().tensors[0][0][i];
    ASSERT_EQ(value, std::floor(value));
    ++seen.at(static_cast<size_t>(value));
  }
  for (int count : seen) EXPECT_GT(count, 0);
}

TEST(OperatorWork, WorkingSetIsWhatAStepTouches) {
  const mixers::MixerDef& mixer = *mixers::find_mixer("block_sparse_attention", "").value();
  OperatorBenchOptions options;
  options.pass = OperatorPass::kStep;
  options.config = R"({"num_heads": 1, "key_dim": 4, "block_size": 4, "random_blocks": 0})";
  options.tokens = 10'003;
  options.repeats = 1;
  const OperatorBenchResult result = bench_operator(mixer, options, nullptr).value();
  // 15 earlier tokens: 4 of the first block, 8 + 3 of the window's three blocks.
  EXPECT_EQ(result.working_set_bytes, result.tensor_bytes + 15 * 4 * 8);
  EXPECT_EQ(result.state_bytes, 10'004 * 4 * 8);
}

TEST(OperatorWork, FlopsGrowWithTheBatchAndAsThePassesSay) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    if (!mixers::has_operator(*mixer)) continue;
    SCOPED_TRACE(mixer->name);
    for (OperatorPass pass : {OperatorPass::kForward, OperatorPass::kBackward,
                              OperatorPass::kForwardBackward, OperatorPass::kStep}) {
      const double one = work_of(*mixer, pass, 1, 20).flops;
      EXPECT_GT(one, 0);
      EXPECT_DOUBLE_EQ(work_of(*mixer, pass, 7, 20).flops, 7 * one);
    }
    EXPECT_DOUBLE_EQ(work_of(*mixer, OperatorPass::kForwardBackward, 1, 20).flops,
                     work_of(*mixer, OperatorPass::kForward, 1, 20).flops +
                         work_of(*mixer, OperatorPass::kBackward, 1, 20).flops);
    // Steps over the sequence do the work of the whole.
    double steps = 0;
    for (int64_t t = 0; t < 20; ++t) steps += work_of(*mixer, OperatorPass::kStep, 1, t).flops;
    EXPECT_DOUBLE_EQ(steps, work_of(*mixer, OperatorPass::kForward, 1, 20).flops);
  }
}

TEST(OperatorWork, TimedCallsCarryIt) {
  const mixers::MixerDef& mixer = *mixers::all_mixers().front();
  OperatorBenchOptions options;
  options.config = operator_config(mixer, kHeads, kKeys, kValues).value();
  options.tokens = 4;
  options.repeats = 1;
  const OperatorBenchResult result = bench_operator(mixer, options, nullptr).value();
  const OperatorWork work = operator_work(mixer, options).value();
  EXPECT_DOUBLE_EQ(result.flops, work.flops);
  EXPECT_DOUBLE_EQ(result.bytes, work.bytes);
}

TEST(RoofShare, TheSlowerOfArithmeticAndMemoryBinds) {
  Roof roof;
  roof.flops_per_second = 100;
  roof.levels = {{"l1_read", 10, 1000}, {"l2_read", 100, 50}, {"ram_read", INT64_MAX, 5}};
  // 200 flops need 2 s; 20 bytes need 0.02 s from L1, 0.4 s from L2, 4 s from RAM.
  const RoofShare l1 = roof_share(roof, 200, 20, 10, 8);
  EXPECT_EQ(l1.kind, "f32_fma");
  EXPECT_DOUBLE_EQ(l1.percent, 25);
  EXPECT_DOUBLE_EQ(l1.bytes_per_second, 1000);
  const RoofShare l2 = roof_share(roof, 200, 20, 11, 8);
  EXPECT_EQ(l2.kind, "f32_fma");
  EXPECT_DOUBLE_EQ(l2.bytes_per_second, 50);
  const RoofShare ram = roof_share(roof, 200, 20, 101, 8);
  EXPECT_EQ(ram.kind, "ram_read");
  EXPECT_DOUBLE_EQ(ram.percent, 50);
  EXPECT_DOUBLE_EQ(ram.bytes_per_second, 5);
}

}  // namespace
}  // namespace tarn::runtime
