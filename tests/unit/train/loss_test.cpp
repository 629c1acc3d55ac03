#include "train/loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "runtime/sampler.h"
#include "train/logistic_mixture.h"

namespace tarn::train {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

std::vector<float> random_params(int64_t components, uint64_t stream) {
  Philox random{7, stream};
  std::vector<float> params(static_cast<size_t>(3 * components));
  for (size_t i = 0; i < params.size(); ++i) {
    params[i] = random.next_normal();
    if (i >= static_cast<size_t>(2 * components)) params[i] = 1.5f * params[i] - 2.5f;
  }
  return params;
}

TEST(LogisticMixture, IsTheDensityThatTheRuntimeEvaluates) {
  for (uint64_t stream = 0; stream < 20; ++stream) {
    const auto params = random_params(10, stream);
    double total = 0.0;
    for (int64_t level = 0; level < 256; ++level) {
      const double nats = logistic_mixture_nats(params.data(), 10, level, 256, 1.0, nullptr);
      EXPECT_NEAR(nats, -runtime::mixture_log_prob(params, level, 256), 1e-12 * (1.0 + nats));
      total += std::exp(-nats);
    }
    EXPECT_NEAR(total, 1.0, 256 * 16 * std::numeric_limits<double>::epsilon());
  }
}

TEST(LogisticMixture, GradientMatchesFiniteDifferences) {
  for (uint64_t stream = 0; stream < 8; ++stream) {
    auto params = random_params(5, stream);
    if (stream == 0) params[12] = -8.0f;  // below the clamp: no gradient
    for (const int64_t level : {0, 1, 128, 254, 255}) {
      std::vector<float> gradient(15, NAN);
      logistic_mixture_nats(params.data(), 5, level, 256, 1.0, gradient.data());
      for (size_t i = 0; i < 15; ++i) {
        // The widest step that f32 parameters represent exactly enough: relative 2^-10.
        const float step = 0x1p-10f * std::max(1.0f, std::fabs(params[i]));
        auto moved = params;
        moved[i] = params[i] + step;
        const double above = logistic_mixture_nats(moved.data(), 5, level, 256, 1.0, nullptr);
        const double upper = moved[i];
        moved[i] = params[i] - step;
        const double below = logistic_mixture_nats(moved.data(), 5, level, 256, 1.0, nullptr);
        const double numeric = (above - below) / (upper - static_cast<double>(moved[i]));
        // Truncation of central differences: step²/6 times a third derivative, which is at most
        // (1/s)³ with the smallest scale s of these parameters.
        double curvature = 1.0;
        for (size_t c = 10; c < 15; ++c) {
          curvature = std::max(curvature, std::exp(-3.0 * std::max(-7.0f, params[c])));
        }
        const double tolerance = static_cast<double>(step) * static_cast<double>(step) * curvature +
                                 8 * kEps * (1.0 + std::abs(numeric));
        EXPECT_NEAR(gradient[i], numeric, tolerance) << "level " << level << " parameter " << i;
      }
    }
  }
}

TEST(LogisticMixture, ClampedScalesHaveNoGradient) {
  const float params[] = {0.0f, 0.1f, -9.0f};
  float gradient[] = {NAN, NAN, NAN};
  logistic_mixture_nats(params, 1, 140, 256, 1.0, gradient);
  EXPECT_EQ(gradient[2], 0.0f);
  EXPECT_NE(gradient[1], 0.0f);
}

TEST(LogisticMixture, StaysFiniteInTheTails) {
  for (const float mean : {-50.0f, 0.0f, 50.0f}) {
    for (const float log_scale : {-30.0f, -7.0f, 0.0f, 20.0f}) {
      for (const int64_t level : {0, 100, 255}) {
        const float params[] = {0.0f, mean, log_scale};
        float gradient[3];
        const double nats = logistic_mixture_nats(params, 1, level, 256, 1.0, gradient);
        EXPECT_TRUE(std::isfinite(nats)) << mean << " " << log_scale << " " << level;
        for (const float value : gradient) EXPECT_TRUE(std::isfinite(value));
      }
    }
  }
}

TEST(HeadLoss, MixtureMatchesThePlainTorchExpression) {
  constexpr int64_t kRows = 37, kComponents = 10;
  std::vector<float> outputs;
  std::vector<int32_t> targets;
  Philox random{5, 5};
  for (int64_t row = 0; row < kRows; ++row) {
    auto params = random_params(kComponents, static_cast<uint64_t>(100 + row));
    // Wide components: the plain expression divides 0 by 0 in the tails of narrow ones.
    for (int64_t i = 2 * kComponents; i < 3 * kComponents; ++i) {
      params[static_cast<size_t>(i)] = 0.2f * params[static_cast<size_t>(i)] - 1.0f;
    }
    outputs.insert(outputs.end(), params.begin(), params.end());
    targets.push_back(static_cast<int32_t>(random.next_below(256)));
  }
  targets[0] = 0;
  targets[1] = 255;
  targets[2] = kNotCounted;
  model::HeadConfig head{model::HeadKind::kDiscretisedLogisticMixture, 256, kComponents};
  std::vector<float> gradient(outputs.size(), NAN);
  ThreadPool pool(2);
  const double nats =
      head_loss(head, kRows, outputs.data(), targets.data(), 0.5, gradient.data(), &pool);

  at::Tensor p = at::from_blob(outputs.data(), {kRows, 3, kComponents}).to(at::kDouble);
  p.set_requires_grad(true);
  const at::Tensor level =
      at::from_blob(targets.data(), {kRows, 1}, at::kInt).to(at::kDouble).clamp_min(0);
  const at::Tensor x = level / 127.5 - 1.0;
  const at::Tensor inverse = at::exp(-p.select(1, 2).clamp_min(-7.0));
  const at::Tensor upper = at::sigmoid((x + 1.0 / 255 - p.select(1, 1)) * inverse);
  const at::Tensor lower = at::sigmoid((x - 1.0 / 255 - p.select(1, 1)) * inverse);
  const at::Tensor top = at::where(level == 255, at::ones_like(upper), upper);
  const at::Tensor bottom = at::where(level == 0, at::zeros_like(lower), lower);
  const at::Tensor joint = at::log(top - bottom) + at::log_softmax(p.select(1, 0), 1);
  const at::Tensor counted =
      (at::from_blob(targets.data(), {kRows}, at::kInt) >= 0).to(at::kDouble);
  const at::Tensor total = -(at::logsumexp(joint, 1) * counted).sum();
  (total * 0.5).backward();
  EXPECT_NEAR(nats, total.item<double>(), 1e-9 * nats);
  const at::Tensor wanted = p.grad().contiguous();
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double value = wanted.const_data_ptr<double>()[i];
    EXPECT_NEAR(gradient[i], value, 1e-9 + 2 * kEps * std::abs(value)) << i;
  }
}

TEST(HeadLoss, CategoricalMatchesDoubleAndSkipsUncountedRows) {
  constexpr int64_t kRows = 9, kClasses = 17;
  std::vector<float> outputs(kRows * kClasses);
  std::vector<int32_t> targets(kRows);
  Philox random{6, 6};
  for (float& value : outputs) value = 4.0f * random.next_normal();
  for (int32_t& target : targets) target = static_cast<int32_t>(random.next_below(kClasses));
  targets[4] = kNotCounted;
  model::HeadConfig head{model::HeadKind::kCategorical, kClasses, 0};
  std::vector<float> gradient(outputs.size(), NAN);
  ThreadPool pool(3);
  const double nats =
      head_loss(head, kRows, outputs.data(), targets.data(), 2.0, gradient.data(), &pool);
  double wanted = 0.0;
  for (int64_t row = 0; row < kRows; ++row) {
    const float* logits = outputs.data() + row * kClasses;
    double sum = 0.0;
    for (int64_t i = 0; i < kClasses; ++i) sum += std::exp(static_cast<double>(logits[i]));
    const int32_t target = targets[static_cast<size_t>(row)];
    if (target != kNotCounted) wanted += std::log(sum) - static_cast<double>(logits[target]);
    for (int64_t i = 0; i < kClasses; ++i) {
      const double p = std::exp(static_cast<double>(logits[i])) / sum;
      const double slope = target == kNotCounted ? 0.0 : 2.0 * (p - (i == target ? 1.0 : 0.0));
      EXPECT_NEAR(gradient[static_cast<size_t>(row * kClasses + i)], slope, 8 * kEps);
    }
  }
  EXPECT_NEAR(nats, wanted, 8 * kEps * kRows);
  EXPECT_EQ(nats, head_loss(head, kRows, outputs.data(), targets.data(), 2.0, nullptr, nullptr));
}

}  // namespace
}  // namespace tarn::train
