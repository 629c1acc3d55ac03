#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/dtype.h"
#include "base/threads.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {
namespace {

constexpr uint16_t kNan = 0x7fc0;

/// bf16 rows laid out as `like`, whose values are rounded with them.
struct Bf16Rows {
  explicit Bf16Rows(Rows<float>& like) : row_stride(like.row_stride), head_stride(like.dim + 1) {
    for (float& x : like.data) {
      data.push_back(f32_to_bf16(x));
      x = bf16_to_f32(data.back());
    }
  }
  Heads<uint16_t> view() { return {data.data() + 3, row_stride, head_stride}; }
  float at(int64_t row, int64_t head, int64_t c) { return bf16_to_f32(view().at(row, head)[c]); }
  int64_t row_stride, head_stride;
  std::vector<uint16_t> data;
};

/// One call on bf16 rows, or one for each piece of `piece` tokens.
struct Bf16Run {
  /// `keys`, unless 0, stands in every element of k.
  explicit Bf16Run(const Case& c, ThreadPool* pool = nullptr, int64_t piece = 0, float keys = 0.0f)
      : t(c),
        q(t.q),
        k(t.k),
        v(t.v),
        before_s(t.s),
        before_z(t.z),
        empty(t.q.rows, t.q.heads, t.v.dim),
        out(empty) {
    t.problem.pool = pool;
    if (keys != 0.0f) std::fill(k.data.begin(), k.data.end(), f32_to_bf16(keys));
    denominator.assign(static_cast<size_t>(t.q.rows * t.q.heads), std::nanf(""));
    const std::vector<int64_t> first = t.begin;
    const std::vector<int64_t> total = t.lengths;
    const int64_t longest = t.longest();
    if (piece == 0) piece = longest;
    Pointers pointers(t.s, t.z);
    for (int64_t done = 0; done < longest; done += piece) {
      for (size_t i = 0; i < first.size(); ++i) {
        t.begin[i] = first[i] + std::min(done, total[i]);
        t.lengths[i] = std::max<int64_t>(0, std::min(piece, total[i] - done));
      }
      causal_forward_bf16(t.problem, q.view(), k.view(), v.view(),
                          c.with_state ? pointers.get() : StatePointers<float>{}, out.view(),
                          denominator.data(), arena);
    }
    t.begin = first;
    t.lengths = total;
  }
  Tensors t;
  Bf16Rows q, k, v;
  std::vector<std::vector<float>> before_s, before_z;
  Rows<float> empty;
  Bf16Rows out;
  std::vector<float> denominator;
  Arena arena;
};

std::vector<Case> cases() {
  return {
      {"one", elu_plus_one_map(32), 1, 32, {1}},
      {"short_and_empty", elu_plus_one_map(32), 2, 32, {31, 0, 32}},
      {"d64", elu_plus_one_map(64), 2, 64, {131, 33}},
      {"keys_wider", elu_plus_one_map(96), 1, 32, {70}},
      {"values_wider", elu_plus_one_map(32), 3, 160, {65}},
      {"no_state", elu_plus_one_map(64), 2, 64, {50, 2}, true, false},
      {"no_division", relu_map(64), 2, 64, {90}, false},
      {"large_inputs", elu_plus_one_map(64), 1, 64, {80}, true, true, 300.0f},
      {"odd33", elu_plus_one_map(33), 1, 17, {65}},
      {"d72", elu_plus_one_map(72), 2, 96, {300}},
  };
}

class StateUpdateBf16 : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, StateUpdateBf16, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

// Each output is a weighted mean: features, state, weights within a block and the output are each
// rounded by up to 2⁻⁹, the denominator's terms as well.
constexpr double kTolerance = 5 * 0x1p-9;

TEST_P(StateUpdateBf16, ForwardMatchesReference) {
  for_each_target([&] {
    Bf16Run run(GetParam());
    Tensors& t = run.t;
    std::swap(t.s, run.before_s);
    std::swap(t.z, run.before_z);
    Expected expected(t, true);
    for (int64_t row = 0; row < t.q.rows; ++row) {
      for (int64_t head = 0; head < t.q.heads; ++head) {
        for (int64_t c = 0; c < t.v.dim; ++c) {
          const double want = expected.out.at(row, head)[c];
          const double got = static_cast<double>(run.out.at(row, head, c));
          ASSERT_EQ(std::isnan(want), std::isnan(got)) << "row " << row << " channel " << c;
          if (std::isnan(want)) continue;  // padding: both untouched
          ASSERT_NEAR(got, want, kTolerance * expected.magnitude.at(row, head)[c])
              << "row " << row << " head " << head << " channel " << c;
        }
      }
    }
    if (!GetParam().with_state) return;
    for (size_t i = 0; i < t.s.size(); ++i) {
      for (size_t j = 0; j < t.s[i].size(); ++j) {
        ASSERT_NEAR(static_cast<double>(run.before_s[i][j]), expected.s[i][j],
                    kTolerance * expected.magnitude_s[i][j]);
      }
      if (!t.problem.normalise) continue;
      for (size_t j = 0; j < t.z[i].size(); ++j) {
        ASSERT_NEAR(static_cast<double>(run.before_z[i][j]), expected.z[i][j],
                    kTolerance * expected.z[i][j]);
      }
    }
  });
}

TEST_P(StateUpdateBf16, WritesNothingBesideItsRows) {
  for_each_target([&] {
    Bf16Run run(GetParam());
    for (size_t i = 0; i < run.out.data.size(); ++i) {
      const auto place = static_cast<int64_t>(i) - 3;
      const int64_t row = place / run.out.row_stride;
      const int64_t column = place % run.out.row_stride;
      const bool inside = place >= 0 && column / run.out.head_stride < run.t.q.heads &&
                          column % run.out.head_stride < run.t.v.dim;
      bool of_sequence = false;
      for (size_t s = 0; s < run.t.begin.size(); ++s) {
        of_sequence |= row >= run.t.begin[s] && row < run.t.begin[s] + run.t.lengths[s];
      }
      if (!inside || !of_sequence) {
        ASSERT_EQ(run.out.data[i], kNan) << i;
      }
    }
  });
}

TEST_P(StateUpdateBf16, ThreadsGiveTheSameBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for_each_target([&] {
    const Bf16Run alone(GetParam());
    for (ThreadPool* pool : {&two, &three}) {
      const Bf16Run other(GetParam(), pool);
      EXPECT_TRUE(same_bits(alone.out.data, other.out.data));
      EXPECT_TRUE(same_bits(alone.denominator, other.denominator));
      for (size_t i = 0; i < alone.t.s.size(); ++i) {
        EXPECT_TRUE(same_bits(alone.t.s[i], other.t.s[i]));
        EXPECT_TRUE(same_bits(alone.t.z[i], other.t.z[i]));
      }
    }
  });
}

/// Blocks start where a call starts, so pieces of whole blocks are the same blocks.
TEST(StateUpdateBf16Splits, AtBlocksGiveTheSameBits) {
  const Case c{"split", elu_plus_one_map(64), 2, 64, {131}};
  for_each_target([&] {
    const Bf16Run whole(c);
    const Bf16Run pieces(c, nullptr, 64);
    EXPECT_TRUE(same_bits(whole.out.data, pieces.out.data));
    EXPECT_TRUE(same_bits(whole.t.s[0], pieces.t.s[0]));
  });
}

/// φ of hugely negative inputs is 0, of NaN it is NaN.
TEST(StateUpdateBf16Extremes, FollowTheFeatureMap) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Case c{"extremes", elu_plus_one_map(32), 1, 32, {40}, true, false};
  for_each_target([&] {
    for (float x :
         {-100.0f, -1e30f, -std::numeric_limits<float>::max(), -kInfinity, std::nanf("")}) {
      Bf16Run run(c, nullptr, 0, x);
      for (int64_t row = run.t.begin[0]; row < run.t.begin[0] + 40; ++row) {
        const float denominator = run.denominator[static_cast<size_t>(row)];
        if (std::isnan(x)) {
          ASSERT_TRUE(std::isnan(denominator)) << row;
        } else {
          ASSERT_EQ(denominator, run.t.problem.eps) << row << " of " << x;
          ASSERT_EQ(run.out.at(row, 0, 5), 0.0f) << row << " of " << x;
        }
      }
    }
  });
}

TEST(StateUpdateBf16Denominator, IsWhatTheF32FormDividesBy) {
  const Case c{"denominator", elu_plus_one_map(32), 2, 32, {75}, true, false};
  for_each_target([&] {
    Bf16Run run(c);
    Tensors& t = run.t;
    Rows<float> out(t.q.rows, t.q.heads, t.v.dim);
    std::vector<float> denominator(run.denominator.size());
    Arena arena;
    causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), {}, out.view(),
                   denominator.data(), arena);
    for (int64_t row = t.begin[0]; row < t.begin[0] + t.lengths[0]; ++row) {
      for (int64_t head = 0; head < 2; ++head) {
        const auto at = static_cast<size_t>(row * 2 + head);
        ASSERT_NEAR(run.denominator[at], denominator[at], 4 * 0x1p-9 * denominator[at]);
      }
    }
  });
}

}  // namespace
}  // namespace tarn::kernels::test
