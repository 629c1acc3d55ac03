#include "kernels/norm_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/norm.h"
#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::dense;
using testing::for_each_target;
using testing::kEps;

constexpr float kNormEps = 1e-5f;

std::vector<double> as_double(const float* x, int64_t size) { return {x, x + size}; }

/// Σ dy·norm(x) of one row by the reference of the forward pass.
double objective(bool rms, const std::vector<double>& x, const std::vector<double>& weight,
                 const std::vector<double>& dy) {
  const auto dim = static_cast<int64_t>(x.size());
  const std::vector<double> bias(x.size(), 0.0);
  std::vector<double> y(x.size());
  if (rms) {
    reference::rms_norm(dim, x.data(), weight.data(), kNormEps, y.data());
  } else {
    reference::layer_norm(dim, x.data(), weight.data(), bias.data(), kNormEps, y.data());
  }
  double sum = 0.0;
  for (size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
  return sum;
}

class NormGradientTest : public ::testing::TestWithParam<bool> {};

TEST_P(NormGradientTest, MatchesDifferencesOfTheDoubleReference) {
  const bool rms = GetParam();
  for_each_target([&] {
    for (const int64_t dim : {2, 3, 15, 33, 64, 100}) {
      SCOPED_TRACE(dim);
      constexpr int64_t kRows = 3;
      const std::vector<float> x = dense(kRows, dim, 1), dy = dense(kRows, dim, 2);
      const std::vector<float> weight = dense(1, dim, 3);
      std::vector<float> dx(x.size(), NAN);
      std::vector<float> dweight(weight.size(), 0.5f), dbias(weight.size(), 0.5f);
      norm_gradient(rms, kRows, dim, x.data(), weight.data(), kNormEps, dy.data(), dx.data(),
                    dweight.data(), rms ? nullptr : dbias.data(), nullptr);
      std::vector<double> wanted_weight(weight.size(), 0.5), wanted_bias(weight.size(), 0.5);
      const double growth = 16.0 + static_cast<double>(dim);
      for (int64_t r = 0; r < kRows; ++r) {
        const std::vector<double> row = as_double(x.data() + r * dim, dim);
        const std::vector<double> g = as_double(dy.data() + r * dim, dim);
        const std::vector<double> w = as_double(weight.data(), dim);
        double square = 0.0, mean = 0.0;
        for (const double value : row) mean += rms ? 0.0 : value / static_cast<double>(dim);
        for (const double value : row) square += (value - mean) * (value - mean);
        const double scale = 1.0 / std::sqrt(square / static_cast<double>(dim) + kNormEps);
        for (int64_t i = 0; i < dim; ++i) {
          const auto at = static_cast<size_t>(i);
          constexpr double kStep = 1e-5;  // truncation and rounding of the difference: about 1e-10
          std::vector<double> higher = row, lower = row;
          higher[at] += kStep;
          lower[at] -= kStep;
          const double slope =
              (objective(rms, higher, w, g) - objective(rms, lower, w, g)) / (2.0 * kStep);
          // Three terms of size ≤ scale·(1 + |x̂|²) that may cancel, each with rounding of its sums.
          const double size = scale * (1.0 + scale * scale * square);
          ASSERT_NEAR(dx[static_cast<size_t>(r * dim + i)], slope,
                      kEps * growth * size + 1e-7 * size * scale * scale);
          wanted_weight[at] += g[at] * (row[at] - mean) * scale;
          wanted_bias[at] += g[at];
        }
      }
      for (size_t i = 0; i < weight.size(); ++i) {
        ASSERT_NEAR(dweight[i], wanted_weight[i], kEps * growth * 8.0);
        ASSERT_NEAR(dbias[i], rms ? 0.5 : wanted_bias[i], kEps * growth * 8.0);
      }
    }
  });
}

TEST_P(NormGradientTest, BitsDoNotDependOnThreads) {
  constexpr int64_t kRows = 1000, kDim = 40;
  const std::vector<float> x = dense(kRows, kDim, 1), dy = dense(kRows, kDim, 2);
  const std::vector<float> weight = dense(1, kDim, 3);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::vector<float> dx(x.size(), NAN), sums(2 * kDim, 0.0f);
    norm_gradient(GetParam(), kRows, kDim, x.data(), weight.data(), kNormEps, dy.data(), dx.data(),
                  sums.data(), GetParam() ? nullptr : sums.data() + kDim, &pool);
    dx.insert(dx.end(), sums.begin(), sums.end());
    results.push_back(std::move(dx));
  }
  EXPECT_EQ(results[0], results[1]);
}

INSTANTIATE_TEST_SUITE_P(LayerAndRms, NormGradientTest, ::testing::Values(false, true));

}  // namespace
}  // namespace tarn::kernels
