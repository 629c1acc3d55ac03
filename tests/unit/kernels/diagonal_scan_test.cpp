#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

#include "base/threads.h"
#include "diagonal_scan_fixture.h"
#include "kernels/diagonal_scan.h"

namespace tarn::kernels::test {
namespace {

class DiagonalScan : public testing::TestWithParam<ScanCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, DiagonalScan, testing::ValuesIn(scan_cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(DiagonalScan, ForwardMatchesReference) {
  for_each_target([&] {
    ScanTensors t(GetParam());
    Rows<float> y = t.out_rows();
    Vectors state = t.state;
    Arena arena;
    forward(t, t.problem, false, pointers(state).data(), y, nullptr, arena);
    expect_near_reference(t, y, state);
    // Without states: zeros.
    if (t.c.with_state) return;
    Rows<float> other = t.out_rows();
    forward(t, t.problem, false, nullptr, other, nullptr, arena);
    EXPECT_TRUE(same_bits(y.data, other.data));
  });
}

/// The forward pass in pieces of `piece` tokens (0: one call).
struct ScanRun {
  ScanRun(const ScanCase& c, int64_t piece, ThreadPool* pool, bool step = false)
      : t(c), y(t.out_rows()) {
    if (piece == 0) piece = t.longest();
    for (int64_t done = 0; done < t.longest(); done += piece) {
      std::vector<float*> state;
      std::vector<int64_t> begin, lengths;
      for (size_t i = 0; i < t.begin.size(); ++i) {
        if (done >= c.lengths[i]) continue;
        begin.push_back(t.begin[i] + done);
        lengths.push_back(std::min(piece, c.lengths[i] - done));
        state.push_back(t.state[i].data());
      }
      DiagonalScanProblem problem = t.problem;
      problem.pool = pool;
      problem.sequences = {static_cast<int64_t>(begin.size()), begin.data(), lengths.data()};
      Arena arena;
      forward(t, problem, step, state.data(), y, nullptr, arena);
    }
  }
  ScanTensors t;
  Rows<float> y;
};

void expect_same(const ScanRun& a, const ScanRun& b) {
  EXPECT_TRUE(same_bits(a.y.data, b.y.data));
  for (size_t i = 0; i < a.t.state.size(); ++i) {
    EXPECT_TRUE(same_bits(a.t.state[i], b.t.state[i]));
  }
}

TEST_P(DiagonalScan, StepsSplitsAndThreadsGiveTheSameBits) {
  ThreadPool two(2), three(3);
  for_each_target([&] {
    const ScanRun whole(GetParam(), 0, nullptr);
    expect_same(whole, ScanRun(GetParam(), 1, nullptr, true));
    for (int64_t piece : {1, 7, 37}) expect_same(whole, ScanRun(GetParam(), piece, nullptr));
    expect_same(whole, ScanRun(GetParam(), 0, &two));
    expect_same(whole, ScanRun(GetParam(), 0, &three));
    expect_same(whole, ScanRun(GetParam(), 1, &three, true));
  });
}

TEST_P(DiagonalScan, BatchMatesDoNotChangeASequence) {
  for_each_target([&] {
    ScanRun together(GetParam(), 0, nullptr);
    ScanTensors t(GetParam());
    for (size_t i = 0; i < t.begin.size(); ++i) {
      DiagonalScanProblem problem = t.problem;
      problem.sequences = {1, &t.begin[i], &t.c.lengths[i]};
      float* state = t.state[i].data();
      Rows<float> y = t.out_rows();
      Arena arena;
      forward(t, problem, false, &state, y, nullptr, arena);
      EXPECT_TRUE(same_bits(t.state[i], together.t.state[i]));
      for (int64_t row = t.begin[i]; row < t.begin[i] + t.c.lengths[i]; ++row) {
        for (int64_t e = 0; e < t.c.channels; ++e) {
          ASSERT_EQ(y.at(row, 0)[e], together.y.at(row, 0)[e]);
        }
      }
    }
  });
}

TEST(DiagonalScanEdges, EmptySequencesAndBatchesTouchNothing) {
  for (bool complex : {false, true}) {
    for_each_target([&] {
      const ScanRun empty({"none", complex, 5, 3, {}}, 0, nullptr);
      const ScanRun rest({"rest", complex, 5, 3, {0, 0}}, 0, nullptr);
      EXPECT_EQ(rest.t.state, ScanTensors(rest.t.c).state);
    });
  }
}

TEST(DiagonalScanEdges, AStepOfZeroKeepsTheStateAndAHugeOneForgetsIt) {
  for_each_target([&] {
    ScanTensors t({"edges", false, 20, 6, {2}});
    for (float& a : t.params[0]) a = -500;
    for (int64_t e = 0; e < 20; ++e) {
      t.rows[1].at(t.begin[0], 0)[e] = 0;
      t.rows[1].at(t.begin[0] + 1, 0)[e] = 1;
    }
    Arena arena;
    Rows<float> y = t.out_rows();
    const Vectors before = t.state;
    DiagonalScanProblem problem = t.problem;
    const int64_t one = 1;
    problem.sequences.length = &one;
    forward(t, problem, false, pointers(t.state).data(), y, nullptr, arena);
    EXPECT_EQ(t.state, before);
    const int64_t next = t.begin[0] + 1;
    problem.sequences.begin = &next;
    forward(t, problem, false, pointers(t.state).data(), y, nullptr, arena);
    for (int64_t e = 0; e < 20; ++e) {
      for (int64_t n = 0; n < 6; ++n) {
        EXPECT_EQ(t.state[0][e * 6 + n], t.rows[0].at(next, 0)[e] * t.rows[2].at(next, 0)[n]);
      }
    }
  });
}

TEST(DiagonalScanEdges, LongRunsStayCloseToTheReference) {
  for (bool complex : {false, true}) {
    for_each_target([&] {
      ScanTensors t({"long", complex, 17, 3, {20000}});
      Rows<float> y = t.out_rows();
      Vectors state = t.state;
      Arena arena;
      forward(t, t.problem, false, pointers(state).data(), y, nullptr, arena);
      expect_near_reference(t, y, state);
    });
  }
}

TEST(ZeroOrderHold, MatchesItsDefinitionAlsoForSmallRates) {
  const std::vector<float> a{-1e-6f, 0, -0.5f, 3, -0.2f, 0.01f, -2, 40, 0, 0};
  const std::vector<float> dt{0.1f};
  std::vector<float> transition(10), input(10);
  zero_order_hold(1, 5, a.data(), dt.data(), transition.data(), input.data());
  const std::complex<double> step(static_cast<double>(dt[0]));
  for (size_t i = 0; i < 10; i += 2) {
    const std::complex<double> rate(a[i], a[i + 1]);
    // exp(dt·A) and ∫ exp(s·A) ds over [0, dt] by Simpson's rule.
    std::complex<double> sum = 0;
    constexpr int kParts = 400;
    for (int k = 0; k <= kParts; ++k) {
      const double weight = k == 0 || k == kParts ? 1 : 2 + 2 * (k % 2);
      sum += weight * std::exp(rate * step * (static_cast<double>(k) / kParts));
    }
    sum *= step / (3.0 * kParts);
    EXPECT_NEAR(transition[i], std::exp(rate * step).real(), kEps);
    EXPECT_NEAR(transition[i + 1], std::exp(rate * step).imag(), kEps);
    EXPECT_NEAR(input[i], sum.real(), kEps * std::abs(step));
    EXPECT_NEAR(input[i + 1], sum.imag(), kEps * std::abs(step));
  }
}

}  // namespace
}  // namespace tarn::kernels::test
