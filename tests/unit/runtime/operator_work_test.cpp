#include <gtest/gtest.h>

#include "runtime/operator_bench.h"
#include "runtime/roof_bench.h"

namespace tarn::runtime {
namespace {

constexpr double kBytes = 4;
constexpr int64_t kHeads = 2, kKeys = 5, kValues = 3;

OperatorWork work_of(const mixers::MixerDef& mixer, OperatorPass pass, int64_t batch,
                     int64_t tokens) {
  OperatorBenchOptions options;
  options.pass = pass;
  options.config = operator_config(mixer, kHeads, kKeys, kValues).value();
  options.batch = batch;
  options.tokens = tokens;
  return operator_work(mixer, options).value();
}

TEST(OperatorWork, BytesAreThoseOfTheTables) {
  // Per row and head q, k of 5, v, out of 3 and one saved value.
  const double inputs = kHeads * (2 * kKeys + kValues), out = kHeads * kValues, saved = kHeads;
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    SCOPED_TRACE(mixer->name);
    const double forward = work_of(*mixer, OperatorPass::kForward, 3, 10).bytes;
    EXPECT_DOUBLE_EQ(forward, kBytes * 30 * (inputs + out + saved));
    const double backward = work_of(*mixer, OperatorPass::kBackward, 3, 10).bytes;
    EXPECT_DOUBLE_EQ(backward, kBytes * 30 * (2 * inputs + 2 * out + saved));
    EXPECT_DOUBLE_EQ(work_of(*mixer, OperatorPass::kForwardBackward, 3, 10).bytes,
                     forward + backward);
    const double step = work_of(*mixer, OperatorPass::kStep, 3, 10).bytes;
    // Fixed: K·V + K values read and written. Growing: eleven entries of K + V read, one written.
    const double state =
        mixer->bounded_state ? 2 * (kKeys * kValues + kKeys) : 11 * (kKeys + kValues);
    EXPECT_DOUBLE_EQ(step, kBytes * 3 * (inputs + out + kHeads * state));
  }
}

TEST(OperatorWork, FlopsGrowWithTheBatchAndAsThePassesSay) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
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
