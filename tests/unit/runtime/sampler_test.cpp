#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace tarn::runtime {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

model::HeadConfig categorical(int64_t classes) {
  return {model::HeadKind::kCategorical, classes, 0};
}
model::HeadConfig mixture(int64_t components, int64_t levels) {
  return {model::HeadKind::kDiscretisedLogisticMixture, levels, components};
}

std::vector<int> histogram(const model::HeadConfig& head, const SamplerOptions& options,
                           const std::vector<float>& output, int draws) {
  Sampler sampler(head, options);
  Philox rng{7, 3, 0};
  std::vector<int> counts(static_cast<size_t>(head.classes));
  for (int i = 0; i < draws; ++i) ++counts[static_cast<size_t>(*sampler.draw(output, rng))];
  return counts;
}

/// Five standard deviations of a binomial count: a correct sampler fails once in 10^6 classes.
void expect_frequency(int count, int draws, double probability) {
  const double deviation = std::sqrt(draws * probability * (1.0 - probability));
  EXPECT_NEAR(count, draws * probability, 5.0 * deviation + 1.0);
}

TEST(Sampler, DrawsClassesWithTheirProbabilities) {
  const std::vector<float> logits{0.5f, -1.0f, 2.0f, 0.0f, kNegativeInfinity};
  const int draws = 40'000;
  for (const float temperature : {0.5f, 1.0f, 3.0f}) {
    const auto counts = histogram(categorical(5), {.temperature = temperature}, logits, draws);
    double total = 0.0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      expect_frequency(counts[i], draws, std::exp(logits[i] / temperature) / total);
    }
    EXPECT_EQ(counts[4], 0);
  }
}

TEST(Sampler, GreedyTakesTheFirstLargestAndDrawsNothing) {
  Sampler sampler(categorical(4), {.greedy = true});
  Philox rng{1, 2, 5};
  EXPECT_EQ(*sampler.draw(std::vector<float>{0.0f, 3.0f, 3.0f, -1.0f}, rng), 1);
  EXPECT_EQ(rng.index, 5u);
}

TEST(Sampler, TopKKeepsTheLikeliestAndBreaksTiesByIndex) {
  const std::vector<float> logits{1.0f, 2.0f, 1.0f, 0.5f, 1.0f};
  const auto counts = histogram(categorical(5), {.top_k = 2}, logits, 20'000);
  const double first = 1.0 / (1.0 + std::exp(1.0));
  expect_frequency(counts[0], 20'000, first);
  expect_frequency(counts[1], 20'000, 1.0 - first);
  EXPECT_EQ(counts[2] + counts[3] + counts[4], 0);
  const auto all = histogram(categorical(5), {.top_k = 99}, logits, 2'000);
  EXPECT_GT(*std::min_element(all.begin(), all.end()), 0);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatHasTheProbability) {
  // Probabilities 0.5, 0.3, 0.15, 0.05 at indices 2, 0, 3, 1.
  const std::vector<float> logits{std::log(0.3f), std::log(0.05f), std::log(0.5f), std::log(0.15f)};
  const auto half = histogram(categorical(4), {.top_p = 0.4f}, logits, 500);
  EXPECT_EQ(half[2], 500);
  const auto most = histogram(categorical(4), {.top_p = 0.79f}, logits, 20'000);
  EXPECT_EQ(most[1] + most[3], 0);
  expect_frequency(most[0], 20'000, 0.3 / 0.8);
  const auto more = histogram(categorical(4), {.top_p = 0.81f}, logits, 20'000);
  EXPECT_EQ(more[1], 0);
  expect_frequency(more[3], 20'000, 0.15 / 0.95);
}

TEST(Sampler, TinyTemperatureIsTheLimitAndStaysFinite) {
  const std::vector<float> logits{-5e4f, 3e4f, 2.9999e4f, kNegativeInfinity};
  for (const float temperature : {1e-4f, 1e-30f}) {
    for (const int64_t top_k : {0, 3}) {
      const SamplerOptions options{.temperature = temperature, .top_k = top_k, .top_p = 0.9f};
      const auto counts = histogram(categorical(4), options, logits, 100);
      EXPECT_EQ(counts[1], 100);
    }
  }
}

TEST(Sampler, RefusesOutputsThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Philox rng;
  for (const bool greedy : {false, true}) {
    Sampler classes(categorical(2), {.greedy = greedy});
    EXPECT_FALSE(classes.draw(std::vector<float>{0.0f, nan}, rng).ok());
    EXPECT_FALSE(classes.draw(std::vector<float>{-kNegativeInfinity, 0.0f}, rng).ok());
    const auto none = classes.draw(std::vector<float>{kNegativeInfinity, kNegativeInfinity}, rng);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().message, "no class has a finite logit, at least one must");
    Sampler levels(mixture(1, 256), {.greedy = greedy});
    EXPECT_FALSE(levels.draw(std::vector<float>{nan, 0.0f, 0.0f}, rng).ok());
    EXPECT_FALSE(levels.draw(std::vector<float>{0.0f, nan, 0.0f}, rng).ok());
    EXPECT_FALSE(levels.draw(std::vector<float>{0.0f, 0.0f, nan}, rng).ok());
  }
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  const auto message = [](const SamplerOptions& options) {
    const Status status = validate(options);
    return status.ok() ? std::string() : status.error().message;
  };
  EXPECT_EQ(message({}), "");
  EXPECT_NE(message({.temperature = 0.0f}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.temperature = -1.0f}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.temperature = std::nanf("")}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.top_k = -1}).find("top_k"), std::string::npos);
  EXPECT_NE(message({.top_p = 0.0f}).find("top_p"), std::string::npos);
  EXPECT_NE(message({.top_p = 1.5f}).find("top_p"), std::string::npos);
}

TEST(Sampler, MixtureDrawsFollowTheLogProbabilities) {
  const std::vector<float> params{0.3f, -0.4f, 0.1f, -0.5f, 0.6f, 1.4f, -1.0f, -2.0f, -0.5f};
  const int64_t levels = 16;
  const int draws = 60'000;
  const auto counts = histogram(mixture(3, levels), {}, params, draws);
  for (int64_t level = 0; level < levels; ++level) {
    const double probability = std::exp(mixture_log_prob(params, level, levels));
    expect_frequency(counts[static_cast<size_t>(level)], draws, probability);
  }
}

TEST(Sampler, GreedyMixtureIsTheLikeliestComponentsMean) {
  Sampler sampler(mixture(2, 256), {.greedy = true});
  Philox rng;
  EXPECT_EQ(*sampler.draw(std::vector<float>{0.0f, 1.0f, -1.0f, 0.2f, 5.0f, 5.0f}, rng),
            std::lround(0.6 * 255));
  EXPECT_EQ(*sampler.draw(std::vector<float>{2.0f, 1.0f, -9.0f, 0.2f, 5.0f, 5.0f}, rng), 0);
  EXPECT_EQ(*sampler.draw(std::vector<float>{2.0f, 1.0f, 1e30f, 0.2f, 5.0f, 5.0f}, rng), 255);
}

TEST(LogProb, CategoricalIsALogSoftmax) {
  const std::vector<float> logits{1000.0f, 999.0f, kNegativeInfinity, -1000.0f};
  const double sum = std::log1p(std::exp(-1.0));
  EXPECT_NEAR(categorical_log_prob(logits, 0), -sum, 4 * kEpsilon * 1000);
  EXPECT_NEAR(categorical_log_prob(logits, 1), -1.0 - sum, 4 * kEpsilon * 1000);
  EXPECT_EQ(categorical_log_prob(logits, 2), -std::numeric_limits<double>::infinity());
  EXPECT_NEAR(categorical_log_prob(logits, 3), -2000.0 - sum, 4 * kEpsilon * 2000);
}

/// The definition, by plain differences of the cumulative distribution.
double plain_mass(double mean, double log_scale, int64_t target, int64_t levels) {
  const double half = 1.0 / static_cast<double>(levels - 1);
  const double x = 2.0 * static_cast<double>(target) * half - 1.0;
  const double scale = std::exp(log_scale);
  const auto cdf = [&](double at) { return 1.0 / (1.0 + std::exp(-(at - mean) / scale)); };
  const double upper = target == levels - 1 ? 1.0 : cdf(x + half);
  const double lower = target == 0 ? 0.0 : cdf(x - half);
  return upper - lower;
}

TEST(LogProb, TheLikeliestAreRankedAndTiesGoToTheLowerToken) {
  const std::vector<float> logits{1.0f, 3.0f, kNegativeInfinity, 1.0f, 3.0f, -2.0f, 1.0f};
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const auto log_prob = [&](int32_t token) {
    return static_cast<double>(logits[static_cast<size_t>(token)]) - std::log(sum);
  };
  const std::vector<int32_t> ranked{1, 4, 0, 3, 6, 5};
  for (int64_t most = 0; most <= 8; ++most) {
    const DrawnLogProbs result = drawn_log_probs(categorical(7), logits, 3, most);
    EXPECT_EQ(result.drawn.token, 3);
    EXPECT_NEAR(result.drawn.log_prob, log_prob(3), 4 * kEpsilon);
    ASSERT_EQ(result.likeliest.size(), static_cast<size_t>(std::min<int64_t>(most, 6)));
    for (size_t i = 0; i < result.likeliest.size(); ++i) {
      EXPECT_EQ(result.likeliest[i].token, ranked[i]);
      EXPECT_NEAR(result.likeliest[i].log_prob, log_prob(ranked[i]), 4 * kEpsilon);
    }
  }
}

TEST(LogProb, TheLikeliestOfAMixtureAreLevels) {
  const std::vector<float> params{0.3f, -0.5f, -0.2f, 0.6f, -2.0f, -1.0f};
  const int64_t levels = 16;
  const DrawnLogProbs result = drawn_log_probs(mixture(2, levels), params, 5, levels);
  EXPECT_EQ(result.drawn.log_prob, mixture_log_prob(params, 5, levels));
  ASSERT_EQ(result.likeliest.size(), static_cast<size_t>(levels));
  double total = 0.0;
  for (size_t i = 0; i < result.likeliest.size(); ++i) {
    const auto& [token, value] = result.likeliest[i];
    EXPECT_EQ(value, mixture_log_prob(params, token, levels));
    if (i > 0) {
      EXPECT_LE(value, result.likeliest[i - 1].log_prob);
    }
    total += std::exp(value);
  }
  EXPECT_NEAR(total, 1.0, 1e-12);
}

TEST(LogProb, MixtureMatchesTheDefinition) {
  const std::vector<float> params{0.5f, -1.0f, -0.3f, 0.7f, -1.5f, -2.5f};
  for (const int64_t levels : {2, 3, 17, 256}) {
    const double first = 1.0 / (1.0 + std::exp(-1.5));
    for (int64_t target = 0; target < levels; ++target) {
      const double mass = first * plain_mass(params[2], params[4], target, levels) +
                          (1.0 - first) * plain_mass(params[3], params[5], target, levels);
      // The difference of two values below 1 has an absolute error of a few ulps of 1.
      EXPECT_NEAR(std::exp(mixture_log_prob(params, target, levels)), mass, 8 * kEpsilon);
    }
  }
}

TEST(LogProb, MixtureSumsToOneEvenAtExtremes) {
  for (const float mean : {-30.0f, -1.0f, 0.003f, 1.0f, 30.0f}) {
    for (const float log_scale : {-100.0f, -7.0f, -3.0f, 0.0f, 5.0f}) {
      const std::vector<float> params{0.0f, mean, log_scale};
      double total = 0.0;
      for (int64_t target = 0; target < 256; ++target) {
        const double value = mixture_log_prob(params, target, 256);
        EXPECT_TRUE(std::isfinite(value)) << mean << " " << log_scale << " " << target;
        total += std::exp(value);
      }
      EXPECT_NEAR(total, 1.0, 256 * 8 * kEpsilon) << mean << " " << log_scale;
    }
  }
}

TEST(LogProb, FarTailsKeepTheirSlope) {
  // Far above the mean the log mass falls by 1/scale per unit of x: no floor, no −inf.
  const std::vector<float> params{0.0f, -1.0f, -5.0f};
  const double step = mixture_log_prob(params, 200, 256) - mixture_log_prob(params, 201, 256);
  EXPECT_NEAR(step, 2.0 / 255.0 * std::exp(5.0), 1e3 * kEpsilon * std::exp(5.0));
}

}  // namespace
}  // namespace tarn::runtime
