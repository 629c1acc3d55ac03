#include "kernels/hash.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::for_each_target;
using testing::TestRows;

/// The header's definition, one float operation after the other.
int32_t bucket_of(int64_t dim, int64_t columns, const float* x, const float* directions) {
  float best = -1.0f;
  int64_t bucket = 0;
  for (int64_t c = 0; c < columns; ++c) {
    float sum = 0.0f;
    for (int64_t i = 0; i < dim; ++i) {
      const float product = x[i] * directions[i * columns + c];
      sum += product;
    }
    if (std::abs(sum) > best) {
      best = std::abs(sum);
      bucket = sum >= 0.0f ? c : columns + c;
    }
  }
  return static_cast<int32_t>(bucket);
}

TEST(Hash, BucketsAreThoseOfTheDefinitionOnAllTargets) {
  for_each_target([&] {
    for (const int64_t rows : {1, 7, 8, 29}) {
      for (const int64_t dim : {1, 5, 32}) {
        for (const int64_t columns : {1, 3, 8, 16, 17, 70}) {
          SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(dim) + " x " +
                       std::to_string(columns));
          const TestRows x = TestRows::uniform(rows, dim, 3);
          const TestRows drawn = TestRows::uniform(1, dim * columns, 4);
          // Its own memory: a read past its end is found by the sanitizer.
          const std::vector<float> directions(drawn.row(0), drawn.row(0) + dim * columns);
          std::vector<int32_t> bucket(static_cast<size_t>(rows), -1);
          largest_projections(rows, dim, columns, {x.row(0), x.stride()}, directions.data(),
                              bucket.data());
          for (int64_t r = 0; r < rows; ++r) {
            EXPECT_EQ(bucket[static_cast<size_t>(r)],
                      bucket_of(dim, columns, x.row(r), directions.data()));
          }
        }
      }
    }
  });
}

TEST(Hash, ZerosGoToTheFirstBucketAndRowsThatAreNotFiniteToSomeBucket) {
  constexpr int64_t kColumns = 20;
  const std::vector<float> directions(2 * kColumns, 0.5f);
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float x[10] = {0.0f, 0.0f, -1.0f, -1.0f, inf, -inf, nan, 1.0f, -inf, 1.0f};
  for_each_target([&] {
    int32_t bucket[5] = {-1, -1, -1, -1, -1};
    largest_projections(5, 2, kColumns, {x, 2}, directions.data(), bucket);
    EXPECT_EQ(bucket[0], 0);
    EXPECT_EQ(bucket[1], kColumns);
    EXPECT_EQ(bucket[4], kColumns) << "all products are -inf";
    for (const int32_t one : {bucket[2], bucket[3]}) {
      EXPECT_GE(one, 0);
      EXPECT_LT(one, 2 * kColumns);
    }
  });
}

}  // namespace
}  // namespace tarn::kernels
