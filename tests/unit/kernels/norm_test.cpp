#include "kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::for_each_target;
using testing::kEps;
using testing::TestRows;

constexpr int64_t kDims[] = {1, 3, 15, 33, 64, 72, 96, 128, 256, 300};

/// Error bound of one normalised element: the sums have relative error dim·eps at worst (far less
/// here, sqrt(dim) lanes), and a mean of size |mean| is subtracted from elements of that size.
double tolerance(int64_t dim, double mean, double deviation, double value) {
  const double growth = 8.0 + std::sqrt(static_cast<double>(dim));
  return kEps * growth * (1.0 + std::abs(value)) * (1.0 + std::abs(mean) / deviation);
}

class NormTest : public ::testing::TestWithParam<float> {};

TEST_P(NormTest, MatchesDoubleReference) {
  const float offset = GetParam();
  for_each_target([&] {
    for (int64_t dim : kDims) {
      SCOPED_TRACE(dim);
      const int64_t rows = 5;
      const TestRows x = TestRows::uniform(rows, dim, 7, offset - 1.0f, offset + 1.0f);
      const TestRows weight = TestRows::uniform(1, dim, 8);
      const TestRows bias = TestRows::uniform(1, dim, 9);
      const float eps = 1e-5f;
      TestRows layer(rows, dim, 2);
      TestRows rms(rows, dim, 2);
      layer_norm(rows, dim, x.data(), x.stride(), weight.data(), bias.data(), eps, layer.data(),
                 layer.stride());
      rms_norm(rows, dim, x.data(), x.stride(), weight.data(), eps, rms.data(), rms.stride());
      EXPECT_TRUE(layer.padding_is_intact());
      EXPECT_TRUE(rms.padding_is_intact());
      std::vector<double> expected(static_cast<size_t>(dim));
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<double> row = x.row_f64(r);
        double mean = 0.0, square = 0.0;
        for (double value : row) mean += value / static_cast<double>(dim);
        for (double value : row) square += (value - mean) * (value - mean);
        const double deviation =
            std::sqrt(square / static_cast<double>(dim) + static_cast<double>(eps));
        reference::layer_norm(dim, row.data(), weight.row_f64(0).data(), bias.row_f64(0).data(),
                              eps, expected.data());
        for (int64_t i = 0; i < dim; ++i) {
          ASSERT_NEAR(layer.row(r)[i], expected[i],
                      tolerance(dim, mean, deviation, expected[i] - bias.row(0)[i]) +
                          kEps * std::abs(bias.row(0)[i]));
        }
        reference::rms_norm(dim, row.data(), weight.row_f64(0).data(), eps, expected.data());
        for (int64_t i = 0; i < dim; ++i) {
          ASSERT_NEAR(rms.row(r)[i], expected[i], tolerance(dim, 0.0, 1.0, expected[i]));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Offsets, NormTest, ::testing::Values(0.0f, 3.0f, -100.0f));

TEST(Norm, RowBitsDoNotDependOnOtherRowsAndAliasingIsAllowed) {
  for_each_target([&] {
    for (int64_t dim : kDims) {
      const TestRows x = TestRows::uniform(9, dim, 17);
      const TestRows weight = TestRows::uniform(1, dim, 18);
      TestRows all = x;
      layer_norm(9, dim, all.data(), all.stride(), weight.data(), weight.data(), 1e-5f, all.data(),
                 all.stride());
      for (int64_t r = 0; r < 9; ++r) {
        TestRows one(1, dim);
        layer_norm(1, dim, x.row(r), x.stride(), weight.data(), weight.data(), 1e-5f, one.data(),
                   one.stride());
        ASSERT_TRUE(one.same_bits(0, all, r)) << dim;
      }
    }
  });
}

TEST(Norm, ConstantRowGivesTheBias) {
  const TestRows bias = TestRows::uniform(1, 72, 3);
  std::vector<float> x(72, 5.0f), out(72, std::nanf("")), weight(72, 2.0f);
  layer_norm(1, 72, x.data(), 72, weight.data(), bias.data(), 1e-5f, out.data(), 72);
  for (int i = 0; i < 72; ++i) EXPECT_EQ(out[i], bias.row(0)[i]);
}

TEST(Norm, NoRows) {
  layer_norm(0, 8, nullptr, 8, nullptr, nullptr, 1e-5f, nullptr, 8);
  rms_norm(0, 8, nullptr, 8, nullptr, 1e-5f, nullptr, 8);
}

}  // namespace
}  // namespace tarn::kernels
