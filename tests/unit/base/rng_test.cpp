#include "base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

namespace tarn {
namespace {

using Block = std::array<uint32_t, 4>;

TEST(Philox, BlocksMatchThePublishedVectors) {
  // Random123, kat_vectors: philox4x32, 10 rounds.
  EXPECT_EQ(philox_block({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox_block({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox_block({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                         {0xa4093822u, 0x299f31d0u}),
            (Block{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, StateIsSeedStreamAndIndex) {
  Philox random{.seed = 5, .stream = 9};
  std::vector<uint32_t> words;
  for (int i = 0; i < 11; ++i) words.push_back(random.next_u32());
  EXPECT_EQ(random.index, 11u);
  for (uint64_t i = 0; i < 11; ++i) {
    Philox resumed{.seed = 5, .stream = 9, .index = i};
    EXPECT_EQ(resumed.next_u32(), words[i]);
  }
}

TEST(Philox, SeedsAndStreamsDiffer) {
  Philox base{.seed = 1};
  Philox seed{.seed = 2};
  Philox high{.seed = uint64_t{1} << 40 | 1};
  Philox stream{.seed = 1, .stream = uint64_t{1} << 40};
  const uint32_t first = base.next_u32();
  EXPECT_NE(seed.next_u32(), first);
  EXPECT_NE(high.next_u32(), first);
  EXPECT_NE(stream.next_u32(), first);
}

TEST(Philox, DrawsHaveTheirRangesAndMoments) {
  constexpr int kDraws = 100000;
  Philox random{.seed = 3};
  double uniform = 0;
  double normal = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const float u = random.next_uniform();
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    const float open = random.next_open_uniform();
    ASSERT_GT(open, 0.0f);
    ASSERT_LT(open, 1.0f);
    const double x = static_cast<double>(random.next_normal());
    ASSERT_TRUE(std::isfinite(x));
    uniform += static_cast<double>(u);
    normal += x;
    squares += x * x;
    ASSERT_LT(random.next_below(7), 7u);
    ASSERT_EQ(random.next_below(1), 0u);
  }
  // Five standard errors of each mean.
  const double error = 5 / std::sqrt(static_cast<double>(kDraws));
  EXPECT_NEAR(uniform / kDraws, 0.5, error * std::sqrt(1.0 / 12));
  EXPECT_NEAR(normal / kDraws, 0.0, error);
  EXPECT_NEAR(squares / kDraws, 1.0, error * std::sqrt(2.0));
}

TEST(Philox, BoundedDrawsReachEveryValueEvenly) {
  constexpr int kDraws = 70000;
  std::array<int, 7> counts{};
  Philox random{.seed = 4};
  for (int i = 0; i < kDraws; ++i) ++counts[random.next_below(7)];
  const double mean = kDraws / 7.0;
  for (int count : counts) EXPECT_NEAR(count, mean, 5 * std::sqrt(mean));
}

}  // namespace
}  // namespace tarn
