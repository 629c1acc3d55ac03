#include "base/checked.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace tarn {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(Checked, AddIsExactOrNothing) {
  EXPECT_EQ(checked_add<int64_t>(2, 3), 5);
  EXPECT_EQ(checked_add<int64_t>(kMax - 1, 1), kMax);
  EXPECT_FALSE(checked_add<int64_t>(kMax, 1));
  EXPECT_FALSE(checked_add<int64_t>(kMin, -1));
  EXPECT_FALSE(checked_add<uint8_t>(200, 56));
  EXPECT_EQ(checked_add<uint8_t>(200, 55), 255);
}

TEST(Checked, MultiplyIsExactOrNothing) {
  EXPECT_EQ(checked_mul<int64_t>(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_FALSE(checked_mul<int64_t>(int64_t{1} << 32, int64_t{1} << 31));
  EXPECT_FALSE(checked_mul<int64_t>(kMin, -1));
  EXPECT_EQ(checked_mul<int64_t>(kMax, 0), 0);
}

TEST(Checked, ProductOfExtents) {
  using Shape = std::array<int64_t, 3>;
  EXPECT_EQ(checked_product<int64_t>({}), 1);
  EXPECT_EQ(checked_product<int64_t>(Shape{2, 3, 4}), 24);
  EXPECT_EQ(checked_product<int64_t>(Shape{2, 0, 4}), 0);
  EXPECT_FALSE(checked_product<int64_t>(Shape{2, -3, 4}));
  EXPECT_FALSE(checked_product<int64_t>(Shape{kMax, 2, 1}));
  // A later zero does not excuse an overflow on the way, nor a negative extent.
  EXPECT_FALSE(checked_product<int64_t>(Shape{kMax, 2, 0}));
  EXPECT_FALSE(checked_product<int64_t>(Shape{0, -1, 1}));
}

}  // namespace
}  // namespace tarn
