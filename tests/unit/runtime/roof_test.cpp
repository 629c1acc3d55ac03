#include <gtest/gtest.h>

#include <atomic>

#include "base/threads.h"
#include "runtime/roof_bench.h"

namespace tarn::runtime {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

TEST(Roof, WorkingSetsFitTheirLevelAndNoSmallerOne) {
  const CacheSizes caches{48 * kKiB, 1 * kMiB, 32 * kMiB};
  const WorkingSets one = working_sets(caches, 1, 64 * kGiB);
  EXPECT_EQ(one.l1, 24 * kKiB);
  EXPECT_EQ(one.l2, 512 * kKiB);
  EXPECT_EQ(one.last, 16 * kMiB);
  EXPECT_EQ(one.ram, 128 * kMiB);
  const WorkingSets four = working_sets(caches, 4, 64 * kGiB);
  EXPECT_EQ(four.l1, one.l1) << "every core has its own";
  EXPECT_EQ(four.l2, one.l2);
  EXPECT_EQ(four.last, 4 * kMiB) << "threads share the last level";
  EXPECT_EQ(four.ram, 32 * kMiB);
  EXPECT_EQ(working_sets(caches, 17, 64 * kGiB).last, 0) << "a share would be mostly in L2";
}

TEST(Roof, WorkingSetsKeepWithinMemoryAndDoWithoutCaches) {
  const WorkingSets unknown = working_sets({}, 2, 64 * kGiB);
  EXPECT_EQ(unknown.l1, 0);
  EXPECT_EQ(unknown.l2, 0);
  EXPECT_EQ(unknown.last, 0);
  EXPECT_EQ(unknown.ram, 32 * kMiB);
  EXPECT_EQ(working_sets({48 * kKiB, kMiB, 32 * kMiB}, 1, 100 * kMiB).ram, 25 * kMiB);
  EXPECT_EQ(working_sets({48 * kKiB, kMiB, kGiB}, 1, 64 * kGiB).ram, kGiB);
}

TEST(Roof, FiguresAreMediansInBillions) {
  RoofFigure figure;
  summarise_rates({4e9, 1e9, 2e9}, figure);
  EXPECT_EQ(figure.rounds, 3);
  EXPECT_DOUBLE_EQ(figure.value, 2);
  EXPECT_DOUBLE_EQ(figure.min, 1);
  EXPECT_DOUBLE_EQ(figure.max, 4);
  summarise_rates({4e9, 1e9, 2e9, 8e9}, figure);
  EXPECT_DOUBLE_EQ(figure.value, 3);
}

TEST(Roof, EveryKindIsMeasuredOrAbsent) {
  ThreadPool pool(2);
  RoofOptions options;
  options.rounds = 2;
  options.round_seconds = 1e-4;
  const auto figures = measure_roof(options, pool);
  ASSERT_TRUE(figures.ok()) << figures.error().to_string();
  const std::vector<std::string> kinds = roof_kinds();
  ASSERT_EQ(figures.value().size(), kinds.size());
  for (size_t i = 0; i < kinds.size(); ++i) {
    const RoofFigure& figure = figures.value()[i];
    EXPECT_EQ(figure.kind, kinds[i]);
    EXPECT_EQ(figure.threads, 2);
    EXPECT_FALSE(figure.unit.empty());
    EXPECT_TRUE(figure.rounds == 0 || figure.rounds == 2);
    EXPECT_LE(figure.min, figure.value);
    EXPECT_LE(figure.value, figure.max);
    EXPECT_EQ(figure.rounds > 0, !figure.instructions.empty() || figure.working_set_bytes > 0);
  }
}

TEST(Roof, MeasuresOnlyWhatIsAskedFor) {
  ThreadPool pool(1);
  RoofOptions options;
  options.rounds = 1;
  options.round_seconds = 1e-4;
  options.kinds = {"f32_fma"};
  const auto figures = measure_roof(options, pool);
  ASSERT_TRUE(figures.ok());
  ASSERT_EQ(figures.value().size(), 1u);
  EXPECT_EQ(figures.value()[0].kind, "f32_fma");
  options.kinds = {"f32_fma", "f33_fma"};
  const auto unknown = measure_roof(options, pool);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  std::atomic<bool> cancel = true;
  options.kinds.clear();
  options.cancel = &cancel;
  const auto cancelled = measure_roof(options, pool);
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace tarn::runtime
