#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/threads.h"
#include "kernels/state_update.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {
namespace {

const float* omega(int64_t dim, int64_t columns) {
  static std::vector<std::vector<float>> drawn;
  drawn.emplace_back(dim * columns);
  draw_orthogonal_features(dim, columns, 11, drawn.back().data());
  return drawn.back().data();
}

std::vector<Case> cases() {
  return {
      // With one feature, or one token and no state, a normalised output does not depend on q.
      {"one", elu_plus_one_map(1), 1, 1, {1}, false},
      {"two", elu_plus_one_map(2), 1, 1, {2}},
      {"three", elu_plus_one_map(3), 2, 5, {4, 0, 7}},
      {"no_state", elu_plus_one_map(5), 1, 3, {9}, true, false},
      {"unnormalised", elu_plus_one_map(6), 2, 4, {11}, false},
      {"identity", identity_map(7), 1, 9, {12}, false},
      {"relu", relu_map(9), 1, 6, {13}},
      {"squared_relu", squared_relu_map(9), 1, 6, {13}},
      {"favor", favor_map(5, 14, omega(5, 7)), 1, 4, {10}, true, true, 0.5f},
      {"favor_large", favor_map(70, 80, omega(70, 40)), 1, 20, {40}, true, true, 0.25f},
      {"d32", elu_plus_one_map(32), 2, 32, {70, 65}},
      {"d64", elu_plus_one_map(64), 1, 64, {131}},
      {"d33", elu_plus_one_map(33), 1, 72, {67}},
      {"d300", elu_plus_one_map(300), 1, 17, {18}},
  };
}

class StateUpdateGradient : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Shapes, StateUpdateGradient, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

/// Inputs in double, with the loss Σ dout·out + Σ ds·S_T + Σ dz·z_T by the reference.
struct Loss {
  Loss(Tensors& t, Rows<float>& dout_in, const std::vector<std::vector<float>>& ds_in,
       const std::vector<std::vector<float>>& dz_in, bool causal_in)
      : problem(t.problem),
        causal(causal_in),
        q(t.q.doubles()),
        k(t.k.doubles()),
        v(t.v.doubles()),
        dout(dout_in.doubles()),
        s(doubles(t.s)),
        z(doubles(t.z)),
        ds(doubles(ds_in)),
        dz(doubles(dz_in)) {}

  double operator()() {
    Rows<double> out(q.rows, q.heads, v.dim);
    auto final_s = s;
    auto final_z = z;
    Pointers state(final_s, final_z);
    reference::state_update(problem, causal, q.view(), k.view(), v.view(),
                            causal ? state.get() : StatePointers<double>{}, out.view());
    double sum = 0;
    for (size_t i = 0; i < out.data.size(); ++i) {
      if (!std::isnan(out.data[i])) sum += dout.data[i] * out.data[i];
    }
    for (size_t i = 0; causal && i < s.size(); ++i) {
      for (size_t j = 0; j < s[i].size(); ++j) sum += ds[i][j] * final_s[i][j];
      for (size_t j = 0; problem.normalise && j < z[i].size(); ++j) {
        sum += dz[i][j] * final_z[i][j];
      }
    }
    return sum;
  }

  double derivative(double& x) {
    const double original = x;
    const double h = 1e-5 * std::max(1.0, std::abs(x));
    x = original + h;
    const double above = (*this)();
    x = original - h;
    const double below = (*this)();
    x = original;
    return (above - below) / (2 * h);
  }

  StateUpdateProblem problem;
  bool causal;
  Rows<double> q, k, v, dout;
  std::vector<std::vector<double>> s, z, ds, dz;
};

/// All gradients of one case by the kernels.
struct Gradients {
  Gradients(const Case& c, bool causal_in, ThreadPool* pool, int64_t chunk_size = 0)
      : t(c),
        causal(causal_in),
        dout(t.q.rows, t.q.heads, t.v.dim),
        dq(t.q.rows, t.q.heads, t.q.dim),
        dk(t.q.rows, t.q.heads, t.q.dim),
        dv(t.q.rows, t.q.heads, t.v.dim) {
    t.problem.pool = pool;
    t.problem.chunk_size = chunk_size;
    Philox random{.seed = 5};
    t.fill(dout, random, 1.0f);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (size_t i = 0; i < t.s.size(); ++i) {
      ds.emplace_back(t.state_size);
      dz.emplace_back(t.sum_size);
      for (float& x : ds.back()) x = 0.1f * random.next_normal();
      for (float& x : dz.back()) x = 0.1f * random.next_normal();
      ds0.emplace_back(t.state_size, nan);
      dz0.emplace_back(t.sum_size, nan);
    }
    Rows<float> out(t.q.rows, t.q.heads, t.v.dim);
    std::vector<float> denominator(t.q.rows * t.q.heads, nan);
    auto s = t.s;
    auto z = t.z;
    Arena arena;
    StateUpdateGradients gradients{dq.view(), dk.view(), dv.view(), {}};
    if (causal) {
      causal_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), Pointers(s, z).get(),
                     out.view(), denominator.data(), arena);
      Pointers initial(t.s, t.z);
      Pointers dfinal(ds, dz);
      Pointers dinitial(ds0, dz0);
      gradients.dinitial = dinitial.get();
      causal_backward(t.problem, t.q.view(), t.k.view(), t.v.view(), out.view(), denominator.data(),
                      c.with_state ? initial.get_const() : StatePointers<const float>{},
                      dout.view(), dfinal.get_const(), gradients, arena);
    } else {
      full_forward(t.problem, t.q.view(), t.k.view(), t.v.view(), out.view(), denominator.data(),
                   arena);
      full_backward(t.problem, t.q.view(), t.k.view(), t.v.view(), out.view(), denominator.data(),
                    dout.view(), gradients, arena);
    }
  }

  Tensors t;
  bool causal;
  Rows<float> dout, dq, dk, dv;
  std::vector<std::vector<float>> ds, dz, ds0, dz0;
};

/// At most about `kSamples` elements spread over a tensor.
constexpr int64_t kSamples = 60;
int64_t sample_step(int64_t size) { return size <= kSamples ? 1 : (size / kSamples) | 1; }

/// Calls `visit(row, head, channel)` for the sampled elements that belong to a sequence.
template <class Visit>
void for_each_sample(const Tensors& t, int64_t heads, int64_t dim, const Visit& visit) {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < t.begin.size(); ++i) {
    for (int64_t r = 0; r < t.lengths[i]; ++r) rows.push_back(t.begin[i] + r);
  }
  const int64_t size = static_cast<int64_t>(rows.size()) * heads * dim;
  for (int64_t i = 0; i < size; i += sample_step(size)) {
    visit(rows[i / (heads * dim)], i / dim % heads, i % dim);
  }
}

std::vector<double> differentiate(const Tensors& t, Loss& loss, Rows<double>& x) {
  std::vector<double> want;
  for_each_sample(t, x.heads, x.dim, [&](int64_t row, int64_t head, int64_t c) {
    want.push_back(loss.derivative(x.at(row, head)[c]));
  });
  return want;
}

std::vector<double> differentiate(Loss& loss, std::vector<std::vector<double>>& x) {
  std::vector<double> want;
  for (auto& each : x) {
    const int64_t size = static_cast<int64_t>(each.size());
    for (int64_t i = 0; i < size; i += sample_step(size)) want.push_back(loss.derivative(each[i]));
  }
  return want;
}

std::vector<float> sample(const Tensors& t, Rows<float>& x) {
  std::vector<float> got;
  for_each_sample(t, x.heads, x.dim,
                  [&](int64_t row, int64_t head, int64_t c) { got.push_back(x.at(row, head)[c]); });
  // Padding rows are nobody's: left as they were.
  EXPECT_TRUE(std::isnan(x.at(0, 0)[0]) && std::isnan(x.at(1, 0)[0]));
  return got;
}

std::vector<float> sample(const std::vector<std::vector<float>>& x) {
  std::vector<float> got;
  for (const auto& each : x) {
    const int64_t size = static_cast<int64_t>(each.size());
    for (int64_t i = 0; i < size; i += sample_step(size)) got.push_back(each[i]);
  }
  return got;
}

/// Error relative to the largest gradient of the tensor; the constant covers the chains through
/// state, quotient and map.
void expect_close(const std::vector<float>& got, const std::vector<double>& want, const Tensors& t,
                  const char* name) {
  double largest = 0;
  for (double x : want) largest = std::max(largest, std::abs(x));
  const double terms =
      static_cast<double>(t.longest() + t.problem.feature_map.feature_dim + t.problem.value_dim);
  const double bound = 16 * kEps * std::sqrt(terms) * largest;
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], bound) << name << " sample " << i;
  }
}

void check_all(const Case& c, bool causal) {
  Gradients any(c, causal, nullptr);
  Loss loss(any.t, any.dout, any.ds, any.dz, causal);
  const std::vector<double> dq = differentiate(any.t, loss, loss.q);
  const std::vector<double> dk = differentiate(any.t, loss, loss.k);
  const std::vector<double> dv = differentiate(any.t, loss, loss.v);
  const std::vector<double> ds0 = differentiate(loss, loss.s);
  const std::vector<double> dz0 = differentiate(loss, loss.z);
  for_each_target([&] {
    Gradients g(c, causal, nullptr);
    expect_close(sample(g.t, g.dq), dq, g.t, "dq");
    expect_close(sample(g.t, g.dk), dk, g.t, "dk");
    expect_close(sample(g.t, g.dv), dv, g.t, "dv");
    if (!causal) return;
    expect_close(sample(g.ds0), ds0, g.t, "initial s");
    expect_close(sample(g.dz0), dz0, g.t, "initial z");
  });
}

TEST_P(StateUpdateGradient, CausalMatchesFiniteDifferences) { check_all(GetParam(), true); }

TEST_P(StateUpdateGradient, FullMatchesFiniteDifferences) { check_all(GetParam(), false); }

void expect_same(const Gradients& one, const Gradients& other) {
  EXPECT_TRUE(same_bits(one.dq.data, other.dq.data));
  EXPECT_TRUE(same_bits(one.dk.data, other.dk.data));
  EXPECT_TRUE(same_bits(one.dv.data, other.dv.data));
  for (size_t i = 0; i < one.ds0.size(); ++i) {
    EXPECT_TRUE(same_bits(one.ds0[i], other.ds0[i]));
    EXPECT_TRUE(same_bits(one.dz0[i], other.dz0[i]));
  }
}

TEST_P(StateUpdateGradient, ThreadsAndChunksGiveTheSameBits) {
  ThreadPool two(2);
  ThreadPool three(3);
  for_each_target([&] {
    for (bool causal : {true, false}) {
      const Gradients one(GetParam(), causal, nullptr);
      expect_same(one, Gradients(GetParam(), causal, &two));
      expect_same(one, Gradients(GetParam(), causal, &three));
      expect_same(one, Gradients(GetParam(), causal, nullptr, 7));
    }
  });
}

TEST(StateUpdateGradientThreads, ThatShareAHeadGiveTheSameBits) {
  const Case c{"shared", elu_plus_one_map(33), 3, 72, {1030}};
  ThreadPool two(2);
  ThreadPool four(4);
  for_each_target([&] {
    for (bool causal : {true, false}) {
      const Gradients alone(c, causal, nullptr);
      expect_same(alone, Gradients(c, causal, &two));
      expect_same(alone, Gradients(c, causal, &four));
    }
  });
}

TEST(StateUpdateGradientEdges, EmptySequencePassesTheStateGradientThrough) {
  const Gradients g({"empty", elu_plus_one_map(4), 1, 3, {0}}, true, nullptr);
  EXPECT_EQ(g.ds0, g.ds);
  EXPECT_EQ(g.dz0, g.dz);
}

}  // namespace
}  // namespace tarn::kernels::test
