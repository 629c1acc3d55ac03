#include "kernels/feature_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/targets.h"

namespace tarn::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = static_cast<double>(std::numeric_limits<float>::epsilon());

struct NamedMap {
  std::string name;
  FeatureMap map;
};

const float* omega(int64_t dim, int64_t columns) {
  static std::vector<std::vector<float>> drawn;
  drawn.emplace_back(dim * columns);
  draw_orthogonal_features(dim, columns, 7, drawn.back().data());
  return drawn.back().data();
}

std::vector<NamedMap> maps() {
  std::vector<NamedMap> all;
  for (int64_t dim : {1, 3, 16, 33, 64, 300}) {
    const std::string suffix = "_" + std::to_string(dim);
    all.push_back({"identity" + suffix, identity_map(dim)});
    all.push_back({"elu_plus_one" + suffix, elu_plus_one_map(dim)});
    all.push_back({"relu" + suffix, relu_map(dim)});
    all.push_back({"squared_relu" + suffix, squared_relu_map(dim)});
  }
  for (int64_t dim : {1, 3, 16, 33}) {
    const std::string suffix = "_" + std::to_string(dim);
    for (int64_t order : {1, 2, 3}) {
      all.push_back({"dpfp" + suffix + "_" + std::to_string(order), dpfp_map(dim, order)});
    }
    all.push_back({"taylor" + suffix, taylor_map(dim)});
  }
  all.push_back({"favor_4_6", favor_map(4, 6, omega(4, 3))});
  all.push_back({"favor_16_32", favor_map(16, 32, omega(16, 16))});
  all.push_back({"favor_33_70", favor_map(33, 70, omega(33, 35))});
  all.push_back({"favor_72_200", favor_map(72, 200, omega(72, 100))});
  return all;
}

class Maps : public testing::TestWithParam<NamedMap> {
 protected:
  static constexpr int64_t kRows = 21;

  const FeatureMap& map() const { return GetParam().map; }
  int64_t stride() const { return map().input_dim + 3; }
  bool is_favor() const { return map().parameters != nullptr; }

  std::vector<float> input() const {
    std::vector<float> x(kRows * stride(), kNan);
    Philox random{.seed = 2};
    // FAVOR+ multiplies the length of x by that of ω inside an exponential.
    const float scale = is_favor() ? 0.5f : 2.0f;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < map().input_dim; ++i) {
        x[r * stride() + i] = scale * random.next_normal();
      }
    }
    return x;
  }
  std::vector<double> reference_row(const std::vector<float>& x, int64_t row) const {
    const auto begin = x.begin() + row * stride();
    const std::vector<double> in(begin, begin + map().input_dim);
    std::vector<double> phi(map().feature_dim);
    map().reference(map(), in.data(), phi.data());
    return phi;
  }
  /// Relative error of exp(u − h): rounding of the exponent's terms, which sum up to `dim`
  /// products.
  double relative_bound() const {
    return is_favor() ? 16 * kEps * std::sqrt(static_cast<double>(map().input_dim)) : 4 * kEps;
  }
};

INSTANTIATE_TEST_SUITE_P(All, Maps, testing::ValuesIn(maps()),
                         [](const auto& instance) { return instance.param.name; });

template <class Body>
void for_each_target(const Body& body) {
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE("target " + target);
    ASSERT_TRUE(force_target(target));
    body();
  }
  ASSERT_TRUE(force_target(""));
}

TEST_P(Maps, ForwardMatchesReference) {
  const std::vector<float> x = input();
  for_each_target([&] {
    std::vector<float> phi(kRows * map().feature_dim + 1, kNan);
    map().forward(map(), kRows, x.data(), stride(), phi.data());
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<double> want = reference_row(x, r);
      for (int64_t i = 0; i < map().feature_dim; ++i) {
        const double got = static_cast<double>(phi[r * map().feature_dim + i]);
        ASSERT_NEAR(got, want[i], relative_bound() * std::abs(want[i])) << r << "," << i;
      }
    }
    EXPECT_TRUE(std::isnan(phi.back()));
  });
}

TEST_P(Maps, BackwardMatchesFiniteDifferences) {
  const std::vector<float> x = input();
  Philox random{.seed = 9};
  std::vector<float> dphi(kRows * map().feature_dim);
  for (float& g : dphi) g = random.next_normal();
  // d/dx_i of Σ dphi·φ(x), for a few rows.
  const auto derivative = [&](int64_t row, int64_t i) {
    const auto begin = x.begin() + row * stride();
    std::vector<double> in(begin, begin + map().input_dim);
    std::vector<double> phi(map().feature_dim);
    const double h = 1e-6;
    double sum = 0;
    for (double sign : {1.0, -1.0}) {
      in[i] = static_cast<double>(x[row * stride() + i]) + sign * h;
      map().reference(map(), in.data(), phi.data());
      for (int64_t j = 0; j < map().feature_dim; ++j) {
        sum += sign * phi[j] * static_cast<double>(dphi[row * map().feature_dim + j]);
      }
    }
    return sum / (2 * h);
  };
  std::vector<double> want;
  double largest = 0;
  for (int64_t row : {int64_t{0}, int64_t{5}, kRows - 1}) {
    for (int64_t i = 0; i < map().input_dim; ++i) {
      want.push_back(derivative(row, i));
      largest = std::max(largest, std::abs(want.back()));
    }
  }
  const double bound = 16 * kEps * std::sqrt(static_cast<double>(map().feature_dim)) * largest;
  for_each_target([&] {
    std::vector<float> phi(kRows * map().feature_dim);
    map().forward(map(), kRows, x.data(), stride(), phi.data());
    const int64_t dx_stride = map().input_dim + 1;
    std::vector<float> dx(kRows * dx_stride, kNan);
    map().backward(map(), kRows, x.data(), stride(), phi.data(), dphi.data(), dx.data(), dx_stride);
    size_t next = 0;
    for (int64_t row : {int64_t{0}, int64_t{5}, kRows - 1}) {
      for (int64_t i = 0; i < map().input_dim; ++i, ++next) {
        const double got = static_cast<double>(dx[row * dx_stride + i]);
        ASSERT_NEAR(got, want[next], bound) << row << "," << i;
      }
      EXPECT_TRUE(std::isnan(dx[row * dx_stride + map().input_dim]));
    }
  });
}

TEST_P(Maps, ARowsBitsDoNotDependOnTheOthers) {
  const std::vector<float> x = input();
  for_each_target([&] {
    const int64_t size = map().feature_dim;
    std::vector<float> together(kRows * size);
    map().forward(map(), kRows, x.data(), stride(), together.data());
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<float> alone(size);
      map().forward(map(), 1, x.data() + r * stride(), stride(), alone.data());
      EXPECT_EQ(std::memcmp(alone.data(), together.data() + r * size, size * sizeof(float)), 0);
    }
  });
}

TEST(FeatureMap, ExtremeInputsStayFiniteAndNanStaysNan) {
  const std::vector<float> x = {-1e30f, -1000.0f, -88.0f, -0.0f, 0.0f, 1e6f, 3e18f, kNan};
  for_each_target([&] {
    std::vector<float> phi(8);
    const FeatureMap elu = elu_plus_one_map(8);
    elu.forward(elu, 1, x.data(), 8, phi.data());
    EXPECT_EQ(phi[0], 0.0f);
    EXPECT_EQ(phi[1], 0.0f);
    EXPECT_EQ(phi[3], 1.0f);
    EXPECT_EQ(phi[4], 1.0f);
    EXPECT_EQ(phi[5], 1e6f + 1.0f);
    EXPECT_TRUE(std::isfinite(phi[6]));
    EXPECT_TRUE(std::isnan(phi[7]));
    const FeatureMap dpfp = dpfp_map(8, 1);
    std::vector<float> products(16);
    dpfp.forward(dpfp, 1, x.data(), 8, products.data());
    EXPECT_EQ(products[1], 0.0f);          // a negative channel
    EXPECT_TRUE(std::isnan(products[6]));  // beside the NaN
    EXPECT_TRUE(std::isnan(products[7]));  // the NaN itself
    for (const FeatureMap& map : {relu_map(8), squared_relu_map(8), identity_map(8)}) {
      map.forward(map, 1, x.data(), 8, phi.data());
      EXPECT_TRUE(std::isfinite(phi[6]));
      EXPECT_TRUE(std::isnan(phi[7]));
    }
  });
}

TEST(FeatureMap, TaylorGivesTheExponentialsPolynomial) {
  constexpr int64_t kDim = 5;
  const FeatureMap map = taylor_map(kDim);
  const std::vector<double> q = {0.5, -1.0, 2.0, 0.0, 0.25}, k = {1.0, 0.5, -0.5, 3.0, -2.0};
  std::vector<double> phi_q(map.feature_dim), phi_k(map.feature_dim);
  map.reference(map, q.data(), phi_q.data());
  map.reference(map, k.data(), phi_k.data());
  double product = 0, s = 0;
  for (int64_t f = 0; f < map.feature_dim; ++f) product += phi_q[f] * phi_k[f];
  for (int64_t i = 0; i < kDim; ++i) s += q[i] * k[i] / std::sqrt(5.0);
  EXPECT_NEAR(product, 1 + s + s * s / 2, 1e-14);
}

/// The example of section 5.3: one active pair of neighbours, one product.
TEST(FeatureMap, DpfpMultipliesNeighboursOfTheRectifiedHalves) {
  const FeatureMap map = dpfp_map(2, 1);
  const std::vector<double> x = {0.5, -2.0};
  std::vector<double> phi(4);
  map.reference(map, x.data(), phi.data());
  // [x, -x] rectified is [0.5, 0, 0, 2]; neighbours, the last one with the first.
  EXPECT_EQ(phi, (std::vector<double>{0.0, 0.0, 0.0, 1.0}));
}

TEST(OrthogonalFeatures, BlocksAreOrthogonalWithGaussianLengths) {
  constexpr int64_t kDim = 24;
  constexpr int64_t kColumns = 60;
  std::vector<float> omega(kDim * kColumns);
  draw_orthogonal_features(kDim, kColumns, 1, omega.data());
  const auto product = [&](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t i = 0; i < kDim; ++i) {
      sum += static_cast<double>(omega[i * kColumns + a]) *
             static_cast<double>(omega[i * kColumns + b]);
    }
    return sum;
  };
  double squares = 0;
  for (int64_t a = 0; a < kColumns; ++a) {
    squares += product(a, a);
    for (int64_t b = a + 1; b < std::min<int64_t>(a / kDim * kDim + kDim, kColumns); ++b) {
      EXPECT_NEAR(product(a, b), 0, 4 * kEps * std::sqrt(product(a, a) * product(b, b)));
    }
  }
  // The squared lengths are χ² with kDim degrees of freedom: five standard deviations of the mean.
  const double n = kDim * kColumns;
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2 / n));
}

TEST(OrthogonalFeatures, SeedDecidesAndMoreColumnsExtendTheDraw) {
  std::vector<float> few(8 * 5), many(8 * 20), other(8 * 5);
  draw_orthogonal_features(8, 5, 42, few.data());
  draw_orthogonal_features(8, 20, 42, many.data());
  draw_orthogonal_features(8, 5, 43, other.data());
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(few[i * 5 + j], many[i * 20 + j]);
  }
  EXPECT_NE(few, other);
}

TEST(FavorMap, ApproximatesTheSoftmaxKernel) {
  // E φ(q)·φ(k) = exp(q·k / √dim). The mean over independent draws has this standard error.
  constexpr int64_t kDim = 8;
  constexpr int64_t kColumns = 256;
  const std::vector<float> q = {0.5f, -0.3f, 0.8f, 0.1f, -0.6f, 0.2f, 0.4f, -0.1f};
  const std::vector<float> k = {0.7f, 0.1f, 0.3f, -0.4f, -0.2f, 0.6f, 0.5f, 0.3f};
  double dot = 0;
  for (int i = 0; i < kDim; ++i) dot += static_cast<double>(q[i]) * static_cast<double>(k[i]);
  constexpr int kDraws = 40;
  double sum = 0;
  double sum_squares = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<float> drawn(kDim * kColumns), phi_q(2 * kColumns), phi_k(2 * kColumns);
    draw_orthogonal_features(kDim, kColumns, 100 + draw, drawn.data());
    const FeatureMap map = favor_map(kDim, 2 * kColumns, drawn.data());
    map.forward(map, 1, q.data(), kDim, phi_q.data());
    map.forward(map, 1, k.data(), kDim, phi_k.data());
    double estimate = 0;
    for (int i = 0; i < 2 * kColumns; ++i) {
      estimate += static_cast<double>(phi_q[i]) * static_cast<double>(phi_k[i]);
    }
    sum += estimate;
    sum_squares += estimate * estimate;
  }
  const double mean = sum / kDraws;
  const double error = std::sqrt((sum_squares / kDraws - mean * mean) / kDraws);
  EXPECT_NEAR(mean, std::exp(dot / std::sqrt(static_cast<double>(kDim))), 5 * error);
}

}  // namespace
}  // namespace tarn::kernels
