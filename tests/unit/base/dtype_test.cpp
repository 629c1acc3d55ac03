#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tarn {
namespace {

TEST(DType, NamesRoundTrip) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64, DType::kI32,
                      DType::kU8}) {
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bytes(dtype), 0);
  }
  EXPECT_FALSE(dtype_from_name("float32"));
  EXPECT_FALSE(dtype_from_name(""));
}

TEST(DType, EveryBf16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    const uint16_t back = f32_to_bf16(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(back)));
    } else {
      ASSERT_EQ(back, bits);
    }
  }
}

TEST(DType, Bf16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-9f), 0x3f80u);             // below half: down
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80u);             // half: to the even neighbour, down
  EXPECT_EQ(f32_to_bf16(1.0f + 0x3p-8f), 0x3f82u);             // half: to the even neighbour, up
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81u);  // above half: up
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80u);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80u);
  // A NaN whose payload lies in the dropped bits stays a NaN.
  const float nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan))));
}

TEST(DType, HalfIsExactForEveryBitPattern) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float got = f16_to_f32(static_cast<uint16_t>(bits));
    const int exponent = static_cast<int>(bits >> 10 & 0x1fu);
    const double fraction = static_cast<double>(bits & 0x3ffu);
    const double sign = bits & 0x8000u ? -1.0 : 1.0;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(got), fraction != 0);
      if (fraction == 0) {
        EXPECT_EQ(got, sign * std::numeric_limits<float>::infinity());
      }
      continue;
    }
    const double want =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(static_cast<double>(got), sign * want) << bits;
    ASSERT_EQ(std::signbit(got), sign < 0);
  }
}

}  // namespace
}  // namespace tarn
