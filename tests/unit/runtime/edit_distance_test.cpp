#include "runtime/edit_distance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace tarn::runtime {
namespace {

using Labels = std::vector<int32_t>;

/// The definition, by recursion over the first symbols.
int64_t distance(const Labels& a, const Labels& b, size_t i = 0, size_t j = 0) {
  if (i == a.size() || j == b.size()) {
    return static_cast<int64_t>(a.size() - i + b.size() - j);
  }
  if (a[i] == b[j]) return distance(a, b, i + 1, j + 1);
  return 1 + std::min({distance(a, b, i + 1, j + 1), distance(a, b, i + 1, j),
                       distance(a, b, i, j + 1)});
}

void expect_counts(const EditCounts& got, int64_t substitutions, int64_t insertions,
                   int64_t deletions) {
  EXPECT_EQ(got.substitutions, substitutions);
  EXPECT_EQ(got.insertions, insertions);
  EXPECT_EQ(got.deletions, deletions);
}

TEST(EditDistance, CountsEachKind) {
  const Labels said = {1, 2, 3, 4};
  expect_counts(edit_distance(said, said), 0, 0, 0);
  expect_counts(edit_distance(said, Labels{1, 9, 3, 4}), 1, 0, 0);
  expect_counts(edit_distance(said, Labels{1, 2, 9, 3, 4, 5}), 0, 2, 0);
  expect_counts(edit_distance(said, Labels{2, 4}), 0, 0, 2);
  expect_counts(edit_distance(said, Labels{}), 0, 0, 4);
  expect_counts(edit_distance(Labels{}, said), 0, 4, 0);
  EditCounts sum = edit_distance(said, Labels{1, 9, 4, 5});
  EXPECT_EQ(sum.errors(), 3);
  sum += edit_distance(Labels{7, 7}, Labels{7});
  EXPECT_EQ(sum.reference, 6);
  EXPECT_DOUBLE_EQ(sum.rate(), 4.0 / 6.0);
  EXPECT_EQ(EditCounts().rate(), 0.0);
}

TEST(EditDistance, IsTheSmallestNumberOfEdits) {
  Philox rng{1, 0, 0};
  for (int trial = 0; trial < 300; ++trial) {
    Labels a(rng.next_below(7)), b(rng.next_below(7));
    for (Labels* labels : {&a, &b}) {
      for (int32_t& label : *labels) label = static_cast<int32_t>(rng.next_below(3));
    }
    const EditCounts counts = edit_distance(a, b);
    EXPECT_EQ(counts.errors(), distance(a, b));
    EXPECT_EQ(counts.insertions - counts.deletions,
              static_cast<int64_t>(b.size()) - static_cast<int64_t>(a.size()));
  }
}

}  // namespace
}  // namespace tarn::runtime
