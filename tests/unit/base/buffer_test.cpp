#include "base/buffer.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tarn {
namespace {

TEST(Buffer, SaysHowMuchMemoryItCouldNotHave) {
  // Sanitizers' allocators end the program themselves, in words of their own.
  EXPECT_DEATH(Buffer<char>(int64_t{1} << 60),
               "out of memory: wanted 1152921504606846976 bytes|requested allocation size");
  EXPECT_DEATH(allocate_aligned(SIZE_MAX), "out of memory: wanted 18446744073709551615 bytes");
}

TEST(Buffer, LargeAndSmallOnesAreAligned) {
  for (const int64_t size : {int64_t{1}, int64_t{65}, int64_t{5} << 20}) {
    const Buffer<char> buffer(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u);
    EXPECT_EQ(buffer.size(), size);
  }
}

}  // namespace
}  // namespace tarn
