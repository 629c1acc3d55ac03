#include "mixers/common/stage_math.h"

#include <gtest/gtest.h>

#include <vector>

namespace tarn::mixers {
namespace {

TEST(SumOf, TakesEveryTermOnceWhateverTheSize) {
  for (int64_t size = 0; size < 40; ++size) {
    std::vector<int> taken(static_cast<size_t>(size));
    const double sum = sum_of<double>(size, [&taken](int64_t c) {
      ++taken[static_cast<size_t>(c)];
      return static_cast<double>(c + 1);
    });
    EXPECT_EQ(sum, static_cast<double>(size * (size + 1) / 2)) << size;
    EXPECT_EQ(taken, std::vector<int>(taken.size(), 1)) << size;
  }
}

}  // namespace
}  // namespace tarn::mixers
