#include "train/optimiser.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace tarn::train {
namespace {

ParameterBuffers two_parameters() {
  ParameterBuffers parameters;
  parameters.entries.push_back({{"a", {5}, {}, true}, 0, 5});
  parameters.entries.push_back({{"b", {3}, {}, false}, 16, 3});
  parameters.values = Buffer<float>::filled(32, 0.0f);
  parameters.gradients = Buffer<float>::filled(32, 0.0f);
  parameters.parameter_count = 8;
  Philox random{1, 1};
  for (const auto& entry : parameters.entries) {
    for (int64_t i = 0; i < entry.size; ++i) {
      parameters.values[entry.offset + i] = random.next_normal();
    }
  }
  return parameters;
}

/// One parameter in double, straight from the papers' algorithms.
struct Plain {
  double w = 0.0, m = 0.0, v = 0.0;
  void update(const OptimiserConfig& c, bool decays, double g, int t) {
    if (decays) w -= c.learning_rate * c.weight_decay * w;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(c.beta1, t));
    const double v_hat = v / (1 - std::pow(c.beta2, t));
    if (c.kind == OptimiserKind::kAdamW) {
      w -= c.learning_rate * m_hat / (std::sqrt(v_hat) + c.eps);
      return;
    }
    const double limit = 2 / (1 - c.beta2) - 1;
    const double rho = limit - 2 * t * std::pow(c.beta2, t) / (1 - std::pow(c.beta2, t));
    if (rho <= 5) {
      w -= c.learning_rate * m_hat;
      return;
    }
    const double r = std::sqrt((rho - 4) * (rho - 2) * limit / ((limit - 4) * (limit - 2) * rho));
    w -= c.learning_rate * m_hat * r * std::sqrt(1 - std::pow(c.beta2, t)) / (std::sqrt(v) + c.eps);
  }
};

class OptimiserTest : public testing::TestWithParam<OptimiserKind> {};

TEST_P(OptimiserTest, FollowsTheAlgorithmInDouble) {
  OptimiserConfig config;
  config.kind = GetParam();
  config.learning_rate = 0.01;
  config.beta2 = 0.99;
  config.weight_decay = 0.1;
  ParameterBuffers parameters = two_parameters();
  Optimiser optimiser(config, parameters);
  std::vector<Plain> plain(32);
  for (int64_t i = 0; i < 32; ++i) plain[static_cast<size_t>(i)].w = parameters.values[i];
  Philox random{2, 2};
  constexpr int kUpdates = 30;  // RAdam changes from momentum to its adaptive form on the way
  for (int t = 1; t <= kUpdates; ++t) {
    for (const auto& entry : parameters.entries) {
      for (int64_t i = entry.offset; i < entry.offset + entry.size; ++i) {
        parameters.gradients[i] = random.next_normal();
        plain[static_cast<size_t>(i)].update(config, entry.spec.weight_decay,
                                             0.5 * static_cast<double>(parameters.gradients[i]), t);
      }
    }
    optimiser.update(1.0, 0.5, parameters, nullptr);
  }
  // Each update rounds a handful of operations on values of order 1.
  const double tolerance = 16.0 * kUpdates * std::numeric_limits<float>::epsilon();
  for (int64_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(parameters.values[i], plain[static_cast<size_t>(i)].w, tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimiserTest,
                         testing::Values(OptimiserKind::kAdamW, OptimiserKind::kRAdam));

TEST(Optimiser, BitsDoNotDependOnThreads) {
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    ParameterBuffers parameters = two_parameters();
    Optimiser optimiser(OptimiserConfig{}, parameters);
    for (int64_t i = 0; i < 32; ++i) parameters.gradients[i] = 0.1f * static_cast<float>(i % 5);
    for (int t = 0; t < 3; ++t) optimiser.update(1.0, 1.0, parameters, &pool);
    const std::vector<float> bits(parameters.values.span().begin(), parameters.values.span().end());
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first);
  }
}

TEST(GlobalNorm, IsTheEuclideanNorm) {
  Buffer<float> values(100'003);
  double sum = 0.0;
  Philox random{3, 3};
  for (float& value : values.span()) {
    value = random.next_normal();
    sum += static_cast<double>(value) * static_cast<double>(value);
  }
  ThreadPool pool(3);
  const double norm = global_norm(values, &pool);
  EXPECT_NEAR(norm, std::sqrt(sum),
              100'003 * std::numeric_limits<double>::epsilon() * std::sqrt(sum));
  EXPECT_EQ(norm, global_norm(values, nullptr));
}

}  // namespace
}  // namespace tarn::train
