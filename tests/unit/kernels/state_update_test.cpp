#include "kernels/state_update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/threads.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {
namespace {

const float* omega(int64_t dim, int64_t columns) {
  static std::vector<std::vector<float>> drawn;
  drawn.emplace_back(dim * columns);
  draw_orthogonal_features(dim, columns, 7, drawn.back().data());
  return drawn.back().data();
}

std::vector<Case> cases() {
  return {
      {"one", elu_plus_one_map(1), 1, 1, {1}},
      {"three", elu_plus_one_map(3), 2, 5, {4, 0, 7}},
      {"odd33", elu_plus_one_map(33), 1, 17, {65}},
      {"d32", elu_plus_one_map(32), 2, 32, {64, 100}},
      {"d64", elu_plus_one_map(64), 2, 64, {131}},
      {"d72", elu_plus_one_map(72), 1, 96, {63}},
      {"d128", elu_plus_one_map(128), 1, 128, {37}},
      {"d300", elu_plus_one_map(300), 1, 33, {19}},
      {"wide_values", elu_plus_one_map(8), 1, 300, {21}},
      {"no_state", elu_plus_one_map(16), 2, 24, {33, 2}, true, false},
      {"identity", identity_map(20), 2, 20, {70}, false},
      {"relu", relu_map(24), 2, 9, {40}},
      {"squared_relu", squared_relu_map(24), 1, 16, {40}},
      {"favor", favor_map(16, 40, omega(16, 20)), 2, 12, {45}, true, true, 0.5f},
      {"large_inputs", elu_plus_one_map(16), 1, 16, {50}, true, true, 300.0f},
  };
}

class StateUpdate : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, StateUpdate, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

/// Rounding errors of a sum of n terms grow like sqrt(n); 8 covers the map and the quotient.
double tolerance(const Tensors& t) {
  const double terms = static_cast<double>(t.longest() + t.problem.feature_map.feature_dim);
  return 8 * kEps * std::sqrt(terms);
}

void expect_close(Tensors& t, Rows<float>& out, Expected& expected) {
  const double bound = tolerance(t);
  for (int64_t row = 0; row < out.rows; ++row) {
    for (int64_t head = 0; head < out.heads; ++head) {
      for (int64_t c = 0; c < out.dim; ++c) {
        const double want = expected.out.at(row, head)[c];
        const double got = static_cast<double>(out.at(row, head)[c]);
        ASSERT_EQ(std::isnan(want), std::isnan(got)) << "row " << row << " channel " << c;
        if (std::isnan(want)) continue;  // padding: both untouched
        ASSERT_NEAR(got, want, bound * expected.magnitude.at(row, head)[c])
            << "row " << row << " head " << head << " channel " << c;
      }
    }
  }
}

TEST_P(StateUpdate, CausalForwardMatchesReference) {
  for_each_target([&] {
    Tensors t(GetParam());
    Expected expected(t, true);
    Rows<float> out(t.q.rows, t.q.heads, t.v.dim);
    Arena arena;
    Pointers state(t.s, t.z);
    causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), state.get(), out.view(), nullptr,
                   arena);
    expect_close(t, out, expected);
    for (size_t i = 0; i < t.s.size(); ++i) {
      for (size_t j = 0; j < t.s[i].size(); ++j) {
        ASSERT_NEAR(static_cast<double>(t.s[i][j]), expected.s[i][j],
                    tolerance(t) * expected.magnitude_s[i][j]);
      }
      if (!t.problem.normalise) continue;
      for (size_t j = 0; j < t.z[i].size(); ++j) {
        ASSERT_NEAR(static_cast<double>(t.z[i][j]), expected.z[i][j],
                    tolerance(t) * expected.z[i][j]);
      }
    }
  });
}

TEST_P(StateUpdate, FullForwardMatchesReference) {
  for_each_target([&] {
    Tensors t(GetParam());
    Expected expected(t, false);
    Rows<float> out(t.q.rows, t.q.heads, t.v.dim);
    Arena arena;
    full_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), out.view(), nullptr, arena);
    expect_close(t, out, expected);
  });
}

/// Outputs and final state of the causal form, run in pieces of `piece` tokens (0: one call).
struct CausalRun {
  CausalRun(const Case& c, int64_t piece, int64_t chunk_size, ThreadPool* pool, bool step)
      : t(c), out(t.q.rows, t.q.heads, t.v.dim) {
    t.problem.pool = pool;
    t.problem.chunk_size = chunk_size;
    Pointers state(t.s, t.z);
    const std::vector<int64_t> first = t.begin;
    const std::vector<int64_t> total = t.lengths;
    if (piece == 0) piece = t.longest();
    for (int64_t done = 0; done < t.longest(); done += piece) {
      // The step form takes one token of every sequence, so only sequences that have one are named.
      std::vector<float*> s, z;
      std::vector<int64_t> begin, lengths;
      for (size_t i = 0; i < first.size(); ++i) {
        if (done >= total[i]) continue;
        begin.push_back(first[i] + done);
        lengths.push_back(std::min(piece, total[i] - done));
        s.push_back(t.s[i].data());
        z.push_back(t.z[i].data());
      }
      StateUpdateProblem problem = t.problem;
      problem.sequences = {static_cast<int64_t>(begin.size()), begin.data(), lengths.data()};
      const StatePointers<float> pointers{s.data(), z.data()};
      if (step) {
        state_update_step(problem, t.q.view(), t.k.view(), t.v.view(), pointers, out.view(), arena);
      } else {
        causal_forward(problem, t.q.view(), t.k.view(), t.v.view(), pointers, out.view(), nullptr,
                       arena);
      }
    }
  }
  Arena arena;
  Tensors t;
  Rows<float> out;
};

void expect_same(const CausalRun& a, const CausalRun& b) {
  EXPECT_TRUE(same_bits(a.out.data, b.out.data));
  for (size_t i = 0; i < a.t.s.size(); ++i) {
    EXPECT_TRUE(same_bits(a.t.s[i], b.t.s[i]));
    EXPECT_TRUE(same_bits(a.t.z[i], b.t.z[i]));
  }
}

TEST_P(StateUpdate, StepsChunksSplitsAndThreadsGiveTheSameBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for_each_target([&] {
    const CausalRun whole(GetParam(), 0, 0, nullptr, false);
    expect_same(whole, CausalRun(GetParam(), 1, 0, nullptr, true));
    for (int64_t chunk : {1, 5, 64, 1 << 30}) {
      expect_same(whole, CausalRun(GetParam(), 0, chunk, nullptr, false));
    }
    for (int64_t piece : {1, 7, 37}) {
      expect_same(whole, CausalRun(GetParam(), piece, 0, nullptr, false));
    }
    expect_same(whole, CausalRun(GetParam(), 0, 0, &two, false));
    expect_same(whole, CausalRun(GetParam(), 0, 0, &three, false));
    expect_same(whole, CausalRun(GetParam(), 1, 0, &three, true));
  });
}

/// Long enough for threads to share a head, over more than one of the chunks they do it in.
TEST(StateUpdateForward, ThreadsThatShareAHeadGiveTheSameBits) {
  const Case c{"shared", elu_plus_one_map(33), 3, 72, {1030}};
  ThreadPool two(2);
  ThreadPool four(4);
  for_each_target([&] {
    const CausalRun alone(c, 0, 0, nullptr, false);
    expect_same(alone, CausalRun(c, 0, 0, &two, false));
    expect_same(alone, CausalRun(c, 0, 0, &four, false));
    expect_same(alone, CausalRun(c, 1000, 0, &four, false));
  });
}

TEST(StateUpdateForward, BatchMatesDoNotChangeASequence) {
  for_each_target([&] {
    Tensors together({"together", elu_plus_one_map(24), 2, 40, {51, 29, 3}});
    const auto s = together.s;
    Rows<float> out(together.q.rows, 2, 40);
    Rows<float> alone(together.q.rows, 2, 40);
    Arena arena;
    Pointers state(together.s, together.z);
    auto copied_s = together.s;
    auto copied_z = together.z;
    causal_forward(together.problem, together.q.view(), together.k.view(), together.v.view(),
                   state.get(), out.view(), nullptr, arena);
    Pointers copied(copied_s, copied_z);
    StateUpdateProblem problem = together.problem;
    problem.sequences = {1, &together.begin[1], &together.lengths[1]};
    causal_forward(problem, together.q.view(), together.k.view(), together.v.view(),
                   {copied.s.data() + 1, copied.z.data() + 1}, alone.view(), nullptr, arena);
    for (int64_t row = together.begin[1]; row < together.begin[1] + 29; ++row) {
      for (int64_t i = 0; i < 40; ++i) ASSERT_EQ(out.at(row, 1)[i], alone.at(row, 1)[i]);
    }
    EXPECT_EQ(together.s[1], copied_s[1]);
    EXPECT_EQ(s[0], copied_s[0]);
  });
}

TEST(StateUpdateForward, NullStateMeansZeros) {
  const Case c{"zeros", elu_plus_one_map(16), 2, 24, {33, 2}, true, false};
  for_each_target([&] {
    const CausalRun given(c, 0, 0, nullptr, false);
    Tensors t(c);
    Rows<float> out(t.q.rows, t.q.heads, t.v.dim);
    Arena arena;
    causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), {}, out.view(), nullptr, arena);
    EXPECT_TRUE(same_bits(out.data, given.out.data));
  });
}

TEST(StateUpdateForward, EmptyBatchAndEmptySequencesTouchNothing) {
  for_each_target([&] {
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {0}, {0, 0}}) {
      const Case c{"empty", elu_plus_one_map(8), 2, 8, lengths};
      Tensors t(c);
      const auto s = t.s;
      Rows<float> out(t.q.rows, 2, 8);
      const std::vector<float> poisoned = out.data;
      Arena arena;
      Pointers state(t.s, t.z);
      causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), state.get(), out.view(),
                     nullptr, arena);
      full_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), out.view(), nullptr, arena);
      EXPECT_TRUE(same_bits(out.data, poisoned));
      EXPECT_EQ(s, t.s);
    }
  });
}

TEST(StateUpdateForward, ZeroDenominatorGivesZeros) {
  // relu of negative keys: the normaliser is ε alone and the numerator zero.
  const Case c{"relu", relu_map(8), 1, 8, {5}, true, false};
  for_each_target([&] {
    Tensors t(c);
    for (int64_t row = 2; row < 7; ++row) {
      for (int64_t i = 0; i < 8; ++i) t.k.at(row, 0)[i] = -1.0f;
    }
    Rows<float> out(t.q.rows, 1, 8);
    Arena arena;
    causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), {}, out.view(), nullptr, arena);
    for (int64_t row = 2; row < 7; ++row) {
      for (int64_t i = 0; i < 8; ++i) ASSERT_EQ(out.at(row, 0)[i], 0.0f);
    }
  });
}

TEST(StateUpdateForward, ScratchDoesNotGrowWithLength) {
  ThreadPool two(2);
  int64_t bytes = 0;
  for (int64_t length : {1000, 30000}) {
    const Case c{"scratch", elu_plus_one_map(16), 2, 16, {length}};
    Tensors t(c);
    t.problem.pool = &two;
    Rows<float> out(t.q.rows, 2, 16);
    std::vector<float> denominator(t.q.rows * 2);
    Rows<float> dq(t.q.rows, 2, 16), dk(t.q.rows, 2, 16), dv(t.q.rows, 2, 16);
    Arena arena;
    causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), {}, out.view(),
                   denominator.data(), arena);
    causal_backward(t.problem, t.q.view(), t.k.view(), t.v.view(), out.view(), denominator.data(),
                    {}, t.v.view(), {}, {dq.view(), dk.view(), dv.view(), {}}, arena);
    if (bytes != 0) {
      EXPECT_EQ(arena.capacity_bytes(), bytes);
    }
    bytes = arena.capacity_bytes();
  }
}

TEST(StateUpdateForward, ErrorOverManyTokensStaysBounded) {
  const Case c{"long", elu_plus_one_map(8), 1, 8, {65536}, true, false};
  Tensors t(c);
  Expected expected(t, true);
  Rows<float> out(t.q.rows, 1, 8);
  Arena arena;
  causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), {}, out.view(), nullptr, arena);
  expect_close(t, out, expected);
}

}  // namespace
}  // namespace tarn::kernels::test
