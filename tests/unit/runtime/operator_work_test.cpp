#include <gtest/gtest.h>

#include "model/parameters.h"
#include "runtime/operator_bench.h"
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

/// Values per row, and of a state that a step after ten tokens reads and writes.
struct Tables {
  double inputs = 0, out = 0, saved = 0, state = 0;
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
    EXPECT_DOUBLE_EQ(forward, kBytes * 30 * (tables.inputs + tables.out + tables.saved));
    const double backward = work_of(*mixer, OperatorPass::kBackward, 3, 10).bytes;
    EXPECT_DOUBLE_EQ(backward, kBytes * 30 * (2 * tables.inputs + 2 * tables.out + tables.saved));
    EXPECT_DOUBLE_EQ(work_of(*mixer, OperatorPass::kForwardBackward, 3, 10).bytes,
                     forward + backward);
    const double step = work_of(*mixer, OperatorPass::kStep, 3, 10).bytes;
    EXPECT_DOUBLE_EQ(step, kBytes * 3 * (tables.inputs + tables.out + tables.state));
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
