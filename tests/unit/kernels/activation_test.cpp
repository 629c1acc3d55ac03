#include "kernels/activation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::for_each_target;
using testing::TestRows;

constexpr Activation kAll[] = {Activation::kNone, Activation::kRelu, Activation::kGelu,
                               Activation::kGeluTanh, Activation::kSilu};

TEST(Activation, NamesRoundTrip) {
  for (Activation activation : kAll) {
    EXPECT_EQ(activation_from_name(activation_name(activation)), activation);
  }
  EXPECT_EQ(activation_from_name("gelu "), std::nullopt);
  EXPECT_EQ(activation_name(Activation::kGeluTanh), "gelu_tanh");
}

TEST(Activation, MatchesDoubleReference) {
  // Dense in the range where the functions bend, then far out where they are flat or linear.
  std::vector<float> points;
  for (int i = -120000; i <= 120000; ++i) points.push_back(static_cast<float>(i) * 1e-4f);
  for (float x : {20.0f, 87.0f, 89.0f, 150.0f, 1e4f, 1e10f, 1e30f, 0.0f, 1e-30f}) {
    points.push_back(x);
    points.push_back(-x);
  }
  for_each_target([&] {
    for (Activation activation : kAll) {
      SCOPED_TRACE(activation_name(activation));
      std::vector<float> result = points;
      apply_activation(activation, static_cast<int64_t>(result.size()), result.data());
      double worst = 0.0;
      for (size_t i = 0; i < points.size(); ++i) {
        const double x = points[i];
        const double error = std::abs(result[i] - reference::activation(activation, x));
        worst = std::max(worst, error / std::max(1.0, std::abs(x)));
      }
      const bool exact = activation == Activation::kNone || activation == Activation::kRelu;
      EXPECT_LE(worst, exact ? 0.0 : 1e-6);  // the bound that the header promises
    }
  });
}

TEST(Activation, BitsDoNotDependOnPlaceOrSize) {
  const TestRows values = TestRows::uniform(1, 133, 5, -6.0f, 6.0f);
  for_each_target([&] {
    for (Activation activation : kAll) {
      TestRows all = values;
      apply_activation(activation, all.dim(), all.row(0));
      EXPECT_TRUE(all.padding_is_intact());
      for (int64_t i = 0; i < values.dim(); ++i) {
        float one = values.row(0)[i];
        apply_activation(activation, 1, &one);
        ASSERT_EQ(one, all.row(0)[i]) << activation_name(activation) << " at " << i;
      }
    }
  });
}

TEST(Activation, NanStaysNan) {
  for_each_target([&] {
    for (Activation activation : kAll) {
      std::vector<float> values(19, std::nanf(""));
      apply_activation(activation, 19, values.data());
      for (float value : values) EXPECT_TRUE(std::isnan(value)) << activation_name(activation);
    }
  });
}

TEST(Activation, NoElements) { apply_activation(Activation::kGelu, 0, nullptr); }

}  // namespace
}  // namespace tarn::kernels
