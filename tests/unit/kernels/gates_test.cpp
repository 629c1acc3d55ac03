#include "kernels/gates.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/norm.h"
#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::for_each_target;
using testing::kEps;
using testing::TestRows;

constexpr GateFunction kAll[] = {GateFunction::kIdentity,   GateFunction::kSigmoid,
                                 GateFunction::kSilu,       GateFunction::kTanh,
                                 GateFunction::kLogSigmoid, GateFunction::kSquaredRelu,
                                 GateFunction::kSoftplus,   GateFunction::kGelu};

Rows<const float> block(const TestRows& rows) { return {rows.data(), rows.stride()}; }
Rows<float> block(TestRows& rows) { return {rows.data(), rows.stride()}; }

/// Error in units of eps times the value's size, or times `floor` where it is smaller than that.
double error_in_eps(float got, double want, double floor) {
  return std::abs(static_cast<double>(got) - want) / (kEps * std::max(std::abs(want), floor));
}

TEST(Gates, FunctionsAndSlopesMatchTheDefinition) {
  std::vector<float> points;
  for (int i = -24000; i <= 24000; ++i) points.push_back(static_cast<float>(i) * 1e-3f);
  for (const float x : {0.0f, 1e-30f, 1e-6f, 50.0f, 88.0f, 104.0f, 500.0f, 1e6f, 1e15f}) {
    points.push_back(x);
    points.push_back(-x);
  }
  const auto count = static_cast<int64_t>(points.size());
  const std::vector<float> ones(points.size(), 1.0f);
  for_each_target([&] {
    for (const GateFunction function : kAll) {
      std::vector<float> values(points.size());
      std::vector<float> slopes(points.size());
      gate_function(function, 1.0f, 1, count, {points.data(), count}, nullptr,
                    {values.data(), count});
      gate_function_gradient(function, 1.0f, 1, count, {points.data(), count}, nullptr,
                             {ones.data(), count}, {slopes.data(), count});
      for (size_t i = 0; i < points.size(); ++i) {
        const double x = points[i];
        // What is below e^-87 may become zero; a slope near zero is a difference of terms near one.
        const double floor = function == GateFunction::kGelu ? std::max(1.0, std::abs(x)) : 1e-30;
        ASSERT_LE(error_in_eps(values[i], reference::gate_function(function, x), floor), 12.0)
            << static_cast<int>(function) << " at " << x;
        ASSERT_LE(error_in_eps(slopes[i], reference::gate_slope(function, x), 1.0), 8.0)
            << static_cast<int>(function) << " slope at " << x;
      }
    }
  });
}

TEST(Gates, BiasScaleAndStridesOfAnyWidth) {
  for_each_target([&] {
    for (const int64_t width : {1, 3, 15, 16, 17, 33, 70}) {
      const TestRows x = TestRows::uniform(3, width, 1, -4.0f, 4.0f);
      const TestRows gate = TestRows::uniform(3, width, 2, -4.0f, 4.0f);
      const TestRows dy = TestRows::uniform(3, width, 3);
      const TestRows bias = TestRows::uniform(1, width, 4);
      TestRows y(3, width), dx(3, width), product(3, width), dproduct(3, width), dgate(3, width);
      const GateFunction f = GateFunction::kSilu;
      gate_function(f, 0.25f, 3, width, block(x), bias.row(0), block(y));
      gate_function_gradient(f, 0.25f, 3, width, block(x), bias.row(0), block(dy), block(dx));
      multiply_by_gate(f, 3, width, block(x), block(gate), block(product));
      multiply_by_gate_gradient(f, 3, width, block(x), block(gate), block(dy), block(dproduct),
                                block(dgate));
      for (const TestRows* rows : {&y, &dx, &product, &dproduct, &dgate}) {
        EXPECT_TRUE(rows->padding_is_intact()) << width;
      }
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t c = 0; c < width; ++c) {
          const double in = static_cast<double>(x.row(r)[c] + bias.row(0)[c]);
          const double d = dy.row(r)[c];
          const double g = gate.row(r)[c];
          const double v = x.row(r)[c];
          EXPECT_LE(error_in_eps(y.row(r)[c], 0.25 * reference::gate_function(f, in), 1.0), 12.0);
          EXPECT_LE(error_in_eps(dx.row(r)[c], 0.25 * d * reference::gate_slope(f, in), 1.0), 12.0);
          EXPECT_LE(error_in_eps(product.row(r)[c], v * reference::gate_function(f, g), 1.0), 16.0);
          EXPECT_LE(error_in_eps(dproduct.row(r)[c], d * reference::gate_function(f, g), 1.0),
                    16.0);
          EXPECT_LE(error_in_eps(dgate.row(r)[c], d * v * reference::gate_slope(f, g), 1.0), 32.0);
        }
      }
    }
  });
}

double l2_loss(const std::vector<double>& x, const std::vector<double>& dy, double eps,
               bool clamped) {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  const double scale =
      clamped ? 1.0 / std::max(std::sqrt(squares), eps) : 1.0 / std::sqrt(squares + eps);
  double sum = 0.0;
  for (size_t c = 0; c < x.size(); ++c) sum += scale * x[c] * dy[c];
  return sum;
}

double rms_loss(const std::vector<double>& x, const std::vector<double>& weight,
                const std::vector<double>& dy, double eps) {
  std::vector<double> y(x.size());
  reference::rms_norm(static_cast<int64_t>(x.size()), x.data(), weight.data(), eps, y.data());
  double sum = 0.0;
  for (size_t c = 0; c < x.size(); ++c) sum += y[c] * dy[c];
  return sum;
}

/// Central difference of `loss` when element c moves.
template <class Loss>
double slope(std::vector<double> x, size_t c, const Loss& loss) {
  const double saved = x[c];
  x[c] = saved + 1e-6;
  const double above = loss(x);
  x[c] = saved - 1e-6;
  return (above - loss(x)) / 2e-6;
}

TEST(Gates, LengthOneRowsAndTheirGradient) {
  for_each_target([&] {
    for (const int64_t dim : {1, 3, 16, 33, 72, 300}) {
      for (const bool clamped : {false, true}) {
        const float eps = clamped ? 1e-12f : 1e-2f;
        const TestRows x = TestRows::uniform(2, dim, 5), dy = TestRows::uniform(2, dim, 6);
        TestRows y(2, dim), dx(2, dim);
        l2_norm(2, dim, block(x), eps, clamped, block(y));
        l2_norm_gradient(2, dim, block(x), block(y), eps, clamped, block(dy), block(dx));
        EXPECT_TRUE(y.padding_is_intact() && dx.padding_is_intact());
        for (int64_t r = 0; r < 2; ++r) {
          const std::vector<double> row = x.row_f64(r);
          const std::vector<double> dyr = dy.row_f64(r);
          std::vector<double> unit(row.size(), 0.0);
          const double largest = 4.0 / std::sqrt(l2_loss(row, row, eps, clamped) + 1e-9);
          for (size_t c = 0; c < row.size(); ++c) {
            unit.assign(row.size(), 0.0);
            unit[c] = 1.0;
            EXPECT_NEAR(y.row(r)[c], l2_loss(row, unit, eps, clamped), 4.0 * kEps);
            EXPECT_NEAR(dx.row(r)[c],
                        slope(row, c, [&](const auto& v) { return l2_loss(v, dyr, eps, clamped); }),
                        (8.0 * kEps * std::sqrt(static_cast<double>(dim)) + 1e-7) * largest)
                << dim << " " << c;
          }
        }
      }
    }
  });
}

TEST(Gates, ARowOfZerosHasLengthZero) {
  const std::vector<float> x(5, 0.0f), dy(5, 2.0f);
  std::vector<float> y(5), dx(5);
  l2_norm(1, 5, {x.data(), 5}, 0.5f, true, {y.data(), 5});
  l2_norm_gradient(1, 5, {x.data(), 5}, {y.data(), 5}, 0.5f, true, {dy.data(), 5}, {dx.data(), 5});
  EXPECT_EQ(y, x);
  EXPECT_EQ(dx, std::vector<float>(5, 4.0f));  // at the clamp the scale is the constant 1/0.5
}

TEST(Gates, GradientOfTheRmsNorm) {
  for_each_target([&] {
    for (const int64_t dim : {1, 5, 16, 33, 130}) {
      const TestRows x = TestRows::uniform(3, dim, 7), dy = TestRows::uniform(3, dim, 8);
      const TestRows weight = TestRows::uniform(1, dim, 9, 0.5f, 1.5f);
      TestRows dx(3, dim);
      std::vector<float> dweight(static_cast<size_t>(dim), 2.0f);  // is added to
      rms_norm_gradient(3, dim, block(x), weight.row(0), 0.1f, block(dy), block(dx),
                        dweight.data());
      EXPECT_TRUE(dx.padding_is_intact());
      const std::vector<double> w = weight.row_f64(0);
      std::vector<double> want_weight(static_cast<size_t>(dim), 2.0);
      for (int64_t r = 0; r < 3; ++r) {
        const std::vector<double> row = x.row_f64(r), dyr = dy.row_f64(r);
        for (size_t c = 0; c < row.size(); ++c) {
          want_weight[c] += slope(w, c, [&](const auto& v) { return rms_loss(row, v, dyr, 0.1f); });
          EXPECT_NEAR(dx.row(r)[c],
                      slope(row, c, [&](const auto& v) { return rms_loss(v, w, dyr, 0.1f); }),
                      16.0 * kEps * std::sqrt(static_cast<double>(dim)) + 1e-7);
        }
      }
      for (size_t c = 0; c < want_weight.size(); ++c) {
        EXPECT_NEAR(dweight[c], want_weight[c], 16.0 * kEps * 3.0 + 1e-7);
      }
    }
  });
}

}  // namespace
}  // namespace tarn::kernels
