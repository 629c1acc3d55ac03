#include "base/part_times.h"

#include <gtest/gtest.h>

namespace tarn {
namespace {

TEST(PartTimes, SumsCallsByNameInOrderOfTheFirst) {
  PartTimes times;
  times.add("b", 1.0, 10.0, DType::kF32);
  times.add("a", 0.5, 0.0, DType::kF32);
  times.add("b", 2.0, 20.0, DType::kBF16);
  ASSERT_EQ(times.parts().size(), 2u);
  EXPECT_EQ(times.parts()[0].name, "b");
  EXPECT_EQ(times.parts()[0].calls, 2);
  EXPECT_EQ(times.parts()[0].seconds, 3.0);
  EXPECT_EQ(times.parts()[0].flops, 30.0);
  EXPECT_EQ(times.parts()[0].format, DType::kF32);
  EXPECT_EQ(times.parts()[1].name, "a");
  times.clear();
  EXPECT_TRUE(times.parts().empty());
}

TEST(PartTimes, ATimerAddsItsOwnLifeAndNothingWithoutTimes) {
  PartTimes times;
  const auto start = PartTimer::Clock::now();
  { const PartTimer timer(&times, "part", 5.0); }
  const std::chrono::duration<double> elapsed = PartTimer::Clock::now() - start;
  ASSERT_EQ(times.parts().size(), 1u);
  EXPECT_GE(times.parts()[0].seconds, 0.0);
  EXPECT_LE(times.parts()[0].seconds, elapsed.count());
  EXPECT_EQ(times.parts()[0].flops, 5.0);
  { const PartTimer timer(nullptr, "part"); }
  EXPECT_EQ(times.parts()[0].calls, 1);
}

}  // namespace
}  // namespace tarn
