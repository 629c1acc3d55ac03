#include "base/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace tarn {
namespace {

TEST(Arena, PiecesAreAlignedAndDisjoint) {
  Arena arena;
  const std::vector<int64_t> sizes = {1, 63, 64, 65, 1000, 0, 200000, 3};
  std::vector<char*> pieces;
  for (size_t i = 0; i < sizes.size(); ++i) {
    pieces.push_back(arena.alloc<char>(sizes[i]));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[i]) % kAlignment, 0u);
    std::fill(pieces[i], pieces[i] + sizes[i], static_cast<char>(i + 1));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(std::count(pieces[i], pieces[i] + sizes[i], static_cast<char>(i + 1)), sizes[i]);
  }
}

TEST(Arena, SteadyWorkloadTakesNoNewMemory) {
  Arena arena;
  EXPECT_EQ(arena.capacity_bytes(), 0);
  const auto work = [&] {
    ArenaScope scope(arena);
    arena.alloc<float>(50000);
    {
      ArenaScope inner(arena);
      arena.alloc<double>(100000);
    }
    arena.alloc<float>(50000);
  };
  work();
  const int64_t bytes = arena.capacity_bytes();
  EXPECT_GT(bytes, 0);
  for (int i = 0; i < 10; ++i) work();
  EXPECT_EQ(arena.capacity_bytes(), bytes);
}

TEST(Arena, ScopesGiveBackInTheirOrder) {
  Arena arena;
  int* outer = arena.alloc<int>(4);
  outer[0] = 7;
  int* first = nullptr;
  {
    ArenaScope scope(arena);
    first = arena.alloc<int>(4);
    first[0] = 1;
  }
  EXPECT_EQ(arena.alloc<int>(4), first);
  EXPECT_EQ(outer[0], 7);
}

TEST(Buffer, MovesAndClones) {
  Buffer<float> buffer = Buffer<float>::filled(5, 2.5f);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u);
  EXPECT_EQ(buffer.size_bytes(), 20);
  Buffer<float> copy = buffer.clone();
  copy[0] = 1.0f;
  EXPECT_EQ(buffer[0], 2.5f);
  const float* data = buffer.data();
  const Buffer<float> moved = std::move(buffer);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved[4], 2.5f);
  EXPECT_EQ(Buffer<float>(0).data(), nullptr);
}

}  // namespace
}  // namespace tarn
