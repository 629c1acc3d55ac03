#include "runtime/ctc.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/rng.h"

namespace tarn::runtime {
namespace {

using Labels = std::vector<int32_t>;

std::vector<float> draw(int64_t count, uint64_t seed) {
  Philox rng{seed, 0, 0};
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = 2.0f * rng.next_normal();
  return values;
}

/// What a path of one class per row stands for, straight from the definition.
Labels labels_of(const std::vector<int32_t>& path) {
  Labels merged = path;
  merged.erase(std::unique(merged.begin(), merged.end()), merged.end());
  std::erase(merged, 0);
  return merged;
}

/// p(labels) of every sequence of labels, over all paths.
std::map<Labels, double> all_probabilities(int64_t rows, int64_t classes,
                                           const std::vector<float>& logits) {
  std::map<Labels, double> result;
  std::vector<int32_t> path(static_cast<size_t>(rows), 0);
  for (;;) {
    double probability = 1.0;
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0.0;
      const float* at = logits.data() + row * classes;
      for (int64_t c = 0; c < classes; ++c) sum += std::exp(double{at[c]});
      probability *= std::exp(double{at[path[static_cast<size_t>(row)]]}) / sum;
    }
    result[labels_of(path)] += probability;
    size_t digit = 0;
    while (digit < path.size() && ++path[digit] == classes) path[digit++] = 0;
    if (digit == path.size()) return result;
  }
}

TEST(Ctc, GreedyMergesRepetitionsAndDropsBlanks) {
  const Labels path = {0, 2, 2, 0, 2, 1, 1, 0, 0, 1};
  std::vector<float> logits(path.size() * 3, 0.0f);
  for (size_t row = 0; row < path.size(); ++row) {
    logits[row * 3 + static_cast<size_t>(path[row])] = 1.0f;
  }
  EXPECT_EQ(ctc_greedy(10, 3, logits.data()), (Labels{2, 2, 1, 1}));
  EXPECT_EQ(ctc_greedy(0, 3, logits.data()), Labels());
}

TEST(Ctc, WideBeamsAreExact) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const int64_t rows = 5, classes = 3;
    const std::vector<float> logits = draw(rows * classes, seed);
    const std::map<Labels, double> want = all_probabilities(rows, classes, logits);
    const auto got = ctc_prefix_beam(rows, classes, logits.data(), 1000);
    EXPECT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(std::exp(got[i].log_prob), want.at(got[i].labels), 1e-12);
      if (i > 0) {
        EXPECT_GE(got[i - 1].log_prob, got[i].log_prob);
      }
    }
  }
}

TEST(Ctc, NarrowBeamsFindWhatGreedyMisses) {
  // The blank leads in both rows, but "a" wins over its three paths: 0.64 against 0.36.
  const auto logit = [](double p) { return static_cast<float>(std::log(p)); };
  const std::vector<float> logits = {logit(0.6), logit(0.4), logit(0.6), logit(0.4)};
  EXPECT_EQ(ctc_greedy(2, 2, logits.data()), Labels());
  const auto best = ctc_prefix_beam(2, 2, logits.data(), 2);
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0].labels, (Labels{1}));
  EXPECT_NEAR(std::exp(best[0].log_prob), 0.64, 1e-6);
}

TEST(Ctc, NarrowBeamsNeverCountAPrefixTwiceOrTooHigh) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int64_t rows = 6, classes = 3;
    const std::vector<float> logits = draw(rows * classes, 100 + seed);
    const std::map<Labels, double> want = all_probabilities(rows, classes, logits);
    for (const int64_t beam : {1, 2, 3, 5}) {
      const auto got = ctc_prefix_beam(rows, classes, logits.data(), beam);
      ASSERT_LE(got.size(), static_cast<size_t>(beam));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE(std::exp(got[i].log_prob), want.at(got[i].labels) + 1e-12);
        for (size_t j = 0; j < i; ++j) EXPECT_NE(got[i].labels, got[j].labels);
      }
    }
  }
}

}  // namespace
}  // namespace tarn::runtime
