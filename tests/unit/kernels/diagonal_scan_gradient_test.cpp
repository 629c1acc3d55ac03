#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <vector>

#include "base/threads.h"
#include "diagonal_scan_fixture.h"
#include "kernels/diagonal_scan.h"

namespace tarn::kernels::test {
namespace {

class DiagonalScanGradient : public testing::TestWithParam<ScanCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, DiagonalScanGradient, testing::ValuesIn(scan_cases()),
                         [](const auto& instance) { return instance.param.name; });

/// All gradients of a case by the kernels, parameters' from `start` on.
struct ScanGradients {
  ScanGradients(const ScanCase& c, ThreadPool* pool, float start = 0) : t(c), dy(t.out_rows()) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    t.problem.pool = pool;
    Philox random{.seed = 9};
    t.fill(dy, random, 1.0f);
    dfinal = t.state;
    for (auto& each : dfinal) {
      for (float& x : each) x = random.next_normal();
    }
    for (auto& each : t.rows) drows.emplace_back(t.num_rows, 1, each.dim);
    for (auto& each : t.params) dparams.emplace_back(each.size(), start);
    for (auto& each : t.state) dinitial.emplace_back(each.size(), nan);
    Rows<float> y = t.out_rows();
    Vectors state = t.state;
    std::vector<float> borders(
        c.complex ? diagonal_state_space_borders(t.problem) : selective_scan_borders(t.problem),
        nan);
    Arena arena;
    forward(t, t.problem, false, pointers(state).data(), y, borders.data(), arena);
    const std::vector<float*> at_end = pointers(dfinal);
    const std::vector<float*> at_start = pointers(dinitial);
    if (c.complex) {
      Vectors hold, dhold(2, std::vector<float>(t.params[0].size()));
      diagonal_state_space_backward(t.problem, state_space(t, hold), borders.data(), view(dy),
                                    at_end.data(),
                                    {view(drows[0]), dhold[0].data(), dhold[1].data(),
                                     dparams[1].data(), dparams[3].data(), at_start.data()},
                                    arena);
      zero_order_hold_gradient(c.channels, c.state_dim, t.params[0].data(), t.params[2].data(),
                               dhold[0].data(), dhold[1].data(), dparams[0].data(),
                               dparams[2].data());
    } else {
      selective_scan_backward(t.problem, selective(t), borders.data(), view(dy), at_end.data(),
                              {view(drows[0]), view(drows[1]), view(drows[2]), view(drows[3]),
                               dparams[0].data(), dparams[1].data(), at_start.data()},
                              arena);
    }
  }
  ScanTensors t;
  Rows<float> dy;
  Vectors dfinal;
  std::vector<Rows<float>> drows;
  Vectors dparams, dinitial;
};

/// Σ dy·y + Σ dfinal·h_T by the reference, differentiated by central differences.
struct ScanLoss {
  explicit ScanLoss(ScanGradients& g)
      : reference(g.t), dy(g.dy.doubles()), dfinal(doubles(g.dfinal)) {}
  double operator()() {
    reference.run();
    double sum = 0;
    for (size_t i = 0; i < dy.data.size(); ++i) {
      if (!std::isnan(dy.data[i])) sum += dy.data[i] * reference.y.data[i];
    }
    for (size_t i = 0; i < dfinal.size(); ++i) {
      for (size_t j = 0; j < dfinal[i].size(); ++j) {
        sum += dfinal[i][j] * reference.final_state[i][j];
      }
    }
    return sum;
  }
  double derivative(double& x) {
    const double original = x;
    const double h = 1e-5 * std::max(1e-2, std::abs(x));
    x = original + h;
    const double above = (*this)();
    x = original - h;
    const double below = (*this)();
    x = original;
    return (above - below) / (2 * h);
  }
  ScanReference reference;
  Rows<double> dy;
  DoubleVectors dfinal;
};

/// At most 40 pairs of places and elements' derivatives per tensor.
struct Derivatives {
  void add(ScanLoss& loss, size_t place, double& x) {
    places.push_back(place);
    values.push_back(loss.derivative(x));
  }
  std::vector<size_t> places;
  std::vector<double> values;
};
Derivatives differentiate(ScanLoss& loss, std::vector<double>& x) {
  Derivatives result;
  const size_t step = x.size() <= 40 ? 1 : (x.size() / 40) | 1;
  for (size_t i = 0; i < x.size(); i += step) {
    if (!std::isnan(x[i])) result.add(loss, i, x[i]);
  }
  return result;
}

/// Relative to the tensor's largest gradient; 32 covers a product of three factors at every token,
/// each with the errors of the forward pass.
void expect_close(const std::vector<float>& got, const Derivatives& want, const ScanTensors& t,
                  const std::string& name) {
  double largest = 0;
  for (double x : want.values) largest = std::max(largest, std::abs(x));
  const double terms = static_cast<double>(t.longest() + t.c.channels + t.c.state_dim);
  for (size_t i = 0; i < want.places.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[want.places[i]]), want.values[i],
                32 * kEps * std::sqrt(terms) * largest)
        << name << " element " << want.places[i];
  }
}

TEST_P(DiagonalScanGradient, MatchesFiniteDifferences) {
  ScanGradients any(GetParam(), nullptr);
  ScanLoss loss(any);
  std::vector<Derivatives> rows, params, states;
  for (auto& each : loss.reference.rows) rows.push_back(differentiate(loss, each.data));
  for (auto& each : loss.reference.params) params.push_back(differentiate(loss, each));
  for (auto& each : loss.reference.state) states.push_back(differentiate(loss, each));
  for_each_target([&] {
    ScanGradients g(GetParam(), nullptr);
    for (size_t i = 0; i < rows.size(); ++i) {
      expect_close(g.drows[i].data, rows[i], g.t, "rows " + std::to_string(i));
      EXPECT_TRUE(std::isnan(g.drows[i].at(0, 0)[0]) && std::isnan(g.drows[i].at(1, 0)[0]));
    }
    for (size_t i = 0; i < params.size(); ++i) {
      if (i + 1 == params.size() && !g.t.c.with_d) continue;
      expect_close(g.dparams[i], params[i], g.t, "parameter " + std::to_string(i));
    }
    for (size_t i = 0; i < states.size(); ++i) {
      expect_close(g.dinitial[i], states[i], g.t, "initial state " + std::to_string(i));
    }
  });
}

TEST_P(DiagonalScanGradient, AddsToParametersAndThreadsGiveTheSameBits) {
  ThreadPool two(2), three(3);
  for_each_target([&] {
    const ScanGradients one(GetParam(), nullptr);
    for (ThreadPool* pool : {&two, &three}) {
      const ScanGradients other(GetParam(), pool);
      for (size_t i = 0; i < one.drows.size(); ++i) {
        EXPECT_TRUE(same_bits(one.drows[i].data, other.drows[i].data));
      }
      for (size_t i = 0; i < one.dparams.size(); ++i) {
        EXPECT_TRUE(same_bits(one.dparams[i], other.dparams[i]));
      }
      for (size_t i = 0; i < one.dinitial.size(); ++i) {
        EXPECT_TRUE(same_bits(one.dinitial[i], other.dinitial[i]));
      }
    }
    const ScanGradients added(GetParam(), nullptr, 3.0f);
    for (size_t i = 0; i < one.dparams.size(); ++i) {
      for (size_t j = 0; j < one.dparams[i].size(); ++j) {
        const float sum = 3.0f + one.dparams[i][j];
        ASSERT_NEAR(added.dparams[i][j], sum, 4 * kEps * std::max(8.0f, std::abs(sum)));
      }
    }
  });
}

TEST(DiagonalScanGradientEdges, EmptySequencesPassThemThrough) {
  for (bool complex : {false, true}) {
    for_each_target([&] {
      const ScanGradients g({"empty", complex, 5, 3, {0, 0}}, nullptr);
      EXPECT_EQ(g.dinitial, g.dfinal);
      for (const auto& each : g.dparams) {
        for (float x : each) EXPECT_EQ(x, 0.0f);
      }
    });
  }
}

TEST(DiagonalScanGradientEdges, HugeStepsHaveFiniteGradients) {
  ScanCase c{"huge", false, 20, 6, {70}};
  for_each_target([&] {
    ScanTensors t(c);
    for (float& a : t.params[0]) a *= 100;
    std::vector<float> borders(selective_scan_borders(t.problem));
    Rows<float> y = t.out_rows(), dy = t.out_rows(), dx = t.out_rows(), ddelta = t.out_rows();
    Rows<float> db(t.num_rows, 1, 6), dc(t.num_rows, 1, 6);
    t.each_element(dy, [](float& x) { x = 1; });
    std::vector<float> da(120), dd(20);
    Arena arena;
    forward(t, t.problem, false, nullptr, y, borders.data(), arena);
    selective_scan_backward(
        t.problem, selective(t), borders.data(), view(dy), nullptr,
        {view(dx), view(ddelta), view(db), view(dc), da.data(), dd.data(), nullptr}, arena);
    for (Rows<float>* rows : {&dx, &ddelta, &db, &dc}) {
      t.each_element(*rows, [](float& x) { ASSERT_TRUE(std::isfinite(x)); });
    }
    for (float x : da) ASSERT_TRUE(std::isfinite(x));
  });
}

/// ∂B̄/∂A = ∫ s·exp(s·A) ds over [0, dt], here by Simpson's rule.
TEST(ZeroOrderHoldGradient, MatchesItsDefinitionAlsoForSmallRates) {
  using Complex = std::complex<double>;
  const std::vector<float> a{-1e-6f, 0, -0.5f, 3, -0.02f, 0.01f, 0, 0};
  const std::vector<float> dt{0.04f};
  const std::vector<float> dtransition{1, 2, -0.5f, 0.25f, 1, -1, 0.5f, 2};
  const std::vector<float> dinput{3, -1, 2, 0.5f, -4, 1, 1, 1.5f};
  std::vector<float> da(8, 1.0f), ddt(1, 2.0f);
  zero_order_hold_gradient(1, 4, a.data(), dt.data(), dtransition.data(), dinput.data(), da.data(),
                           ddt.data());
  const auto pair = [](const std::vector<float>& x, size_t i) {
    return Complex(static_cast<double>(x[i]), static_cast<double>(x[i + 1]));
  };
  const double step = static_cast<double>(dt[0]);
  double dstep = 2;
  for (size_t i = 0; i < 8; i += 2) {
    const Complex rate = pair(a, i);
    Complex moment = 0;
    constexpr int kParts = 100;
    for (int k = 0; k <= kParts; ++k) {
      const double s = step * k / kParts;
      moment += (k == 0 || k == kParts ? 1.0 : 2.0 + 2 * (k % 2)) * s * std::exp(s * rate);
    }
    moment *= step / (3.0 * kParts);
    const Complex decay = std::exp(step * rate);
    const Complex want = Complex(1, 1) + std::conj(step * decay) * pair(dtransition, i) +
                         std::conj(moment) * pair(dinput, i);
    EXPECT_NEAR(static_cast<double>(da[i]), want.real(), 2 * kEps * std::abs(want));
    EXPECT_NEAR(static_cast<double>(da[i + 1]), want.imag(), 2 * kEps * std::abs(want));
    // Alone, without the 1 that it was added to: so that the small part is seen too.
    std::vector<float> alone(2), unused(1);
    zero_order_hold_gradient(1, 1, &a[i], dt.data(), std::vector<float>(2).data(), &dinput[i],
                             alone.data(), unused.data());
    const Complex moment_part = std::conj(moment) * pair(dinput, i);
    EXPECT_NEAR(static_cast<double>(alone[0]), moment_part.real(),
                2 * kEps * std::abs(moment_part));
    EXPECT_NEAR(static_cast<double>(alone[1]), moment_part.imag(),
                2 * kEps * std::abs(moment_part));
    dstep += (std::conj(rate * decay) * pair(dtransition, i) + std::conj(decay) * pair(dinput, i))
                 .real();
  }
  EXPECT_NEAR(static_cast<double>(ddt[0]), dstep, 4 * kEps * std::abs(dstep));
}

}  // namespace
}  // namespace tarn::kernels::test
