#include "kernels/diagonal_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

#include "base/threads.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {
namespace {

using Vectors = std::vector<std::vector<float>>;
using DoubleVectors = std::vector<std::vector<double>>;

struct ScanCase {
  std::string name;
  bool complex = false;  ///< the diagonal state space model, else the selective scan
  int64_t channels = 1;
  int64_t state_dim = 1;
  std::vector<int64_t> lengths;
  bool with_state = true;
  bool with_d = true;
};

void PrintTo(const ScanCase& c, std::ostream* out) { *out << c.name; }

std::vector<ScanCase> cases() {
  std::vector<ScanCase> all;
  for (bool complex : {false, true}) {
    const std::string kind = complex ? "complex_" : "selective_";
    all.push_back({kind + "1x1", complex, 1, 1, {1}});
    all.push_back({kind + "3x4", complex, 3, 4, {5, 0, 33}});
    all.push_back({kind + "16x16", complex, 16, 16, {32, 64}});
    all.push_back({kind + "33x17", complex, 33, 17, {65, 31}});
    all.push_back({kind + "72x4", complex, 72, 4, {129}});
    all.push_back({kind + "72x16_zeros", complex, 72, 16, {40, 2}, false, false});
    all.push_back({kind + "130x1", complex, 130, 1, {63}});
  }
  return all;
}

/// Tensors of a case. Rows: x, delta, B, C or u; parameters: A, d or A, C, dt, d.
struct ScanTensors {
  explicit ScanTensors(const ScanCase& c_in) : c(c_in) {
    int64_t row = 0;
    for (int64_t length : c.lengths) {
      begin.push_back(row + 2);  // two rows of padding stay NaN
      row += length + 2;
    }
    num_rows = row + 1;
    const int64_t E = c.channels, N = c.state_dim;
    rows.emplace_back(num_rows, 1, E);
    if (c.complex) {
      params = {Vectors::value_type(2 * E * N), Vectors::value_type(2 * E * N),
                Vectors::value_type(E), Vectors::value_type(E)};
    } else {
      rows.emplace_back(num_rows, 1, E);
      rows.emplace_back(num_rows, 1, N);
      rows.emplace_back(num_rows, 1, N);
      params = {Vectors::value_type(E * N), Vectors::value_type(E)};
    }
    Philox random{.seed = 3};
    for (auto& each : rows) fill(each, random, 1.0f);
    for (auto& each : params) {
      for (float& x : each) x = random.next_normal();
    }
    if (c.complex) {
      for (int64_t i = 0; i < E * N; ++i) params[0][2 * i] = -std::exp(params[0][2 * i] - 0.7f);
      for (float& dt : params[2]) dt = 0.05f * std::exp(dt);
    } else {
      each_element(rows[1], [](float& x) { x = std::log1p(std::exp(x - 1.0f)); });
      for (float& a : params[0]) a = -std::exp(a);
    }
    state.assign(c.lengths.size(), std::vector<float>((c.complex ? 2 : 1) * E * N));
    for (auto& each : state) {
      for (float& x : each) x = c.with_state ? random.next_normal() : 0.0f;
    }
    problem.sequences = {static_cast<int64_t>(begin.size()), begin.data(), c.lengths.data()};
    problem.num_channels = E;
    problem.state_dim = N;
  }
  ScanTensors(const ScanTensors&) = delete;
  ScanTensors& operator=(const ScanTensors&) = delete;

  template <class T, class Body>
  void each_element(Rows<T>& in, const Body& body) const {
    for (size_t i = 0; i < begin.size(); ++i) {
      for (int64_t row = begin[i]; row < begin[i] + c.lengths[i]; ++row) {
        for (int64_t e = 0; e < in.dim; ++e) body(in.at(row, 0)[e]);
      }
    }
  }
  void fill(Rows<float>& in, Philox& random, float scale) const {
    each_element(in, [&](float& x) { x = scale * random.next_normal(); });
  }
  int64_t longest() const {
    int64_t most = 1;
    for (int64_t length : c.lengths) most = std::max(most, length);
    return most;
  }
  Rows<float> out_rows() const { return Rows<float>(num_rows, 1, c.channels); }

  ScanCase c;
  std::vector<int64_t> begin;
  int64_t num_rows = 0;
  std::vector<Rows<float>> rows;
  Vectors params;
  Vectors state;
  DiagonalScanProblem problem;
};

template <class T>
kernels::Rows<T> view(Rows<T>& in) {
  return {in.view().data, in.row_stride};
}
template <class T>
std::vector<T*> pointers(std::vector<std::vector<T>>& in) {
  std::vector<T*> out;
  for (auto& each : in) out.push_back(each.data());
  return out;
}

SelectiveScanInputs<float> selective(ScanTensors& t) {
  return {view(t.rows[0]), view(t.rows[1]),    view(t.rows[2]),
          view(t.rows[3]), t.params[0].data(), t.c.with_d ? t.params[1].data() : nullptr};
}
/// `hold` receives the discrete system.
DiagonalStateSpaceInputs state_space(ScanTensors& t, Vectors& hold) {
  hold.assign(2, std::vector<float>(t.params[0].size()));
  zero_order_hold(t.c.channels, t.c.state_dim, t.params[0].data(), t.params[2].data(),
                  hold[0].data(), hold[1].data());
  return {view(t.rows[0]), hold[0].data(), hold[1].data(), t.params[1].data(),
          t.c.with_d ? t.params[3].data() : nullptr};
}

/// Forward of `problem`, which may name a part of the case's tokens.
void forward(ScanTensors& t, const DiagonalScanProblem& problem, bool step, float* const* state,
             Rows<float>& y, float* borders, Arena& arena) {
  Vectors hold;
  if (t.c.complex && step) {
    diagonal_state_space_step(problem, state_space(t, hold), state, view(y), arena);
  } else if (t.c.complex) {
    diagonal_state_space_forward(problem, state_space(t, hold), state, view(y), borders, arena);
  } else if (step) {
    selective_scan_step(problem, selective(t), state, view(y), arena);
  } else {
    selective_scan_forward(problem, selective(t), state, view(y), borders, arena);
  }
}

/// The case in double, with its outputs by the reference.
struct ScanReference {
  explicit ScanReference(ScanTensors& t)
      : c(t.c), problem(t.problem), state(doubles(t.state)), y(t.num_rows, 1, t.c.channels) {
    for (auto& each : t.rows) rows.push_back(each.doubles());
    params = doubles(t.params);
  }
  void run() {
    final_state = state;
    const std::vector<double*> h = pointers(final_state);
    if (c.complex) {
      reference::diagonal_state_space(problem,
                                      {view(rows[0]), params[0].data(), params[2].data(),
                                       params[1].data(), c.with_d ? params[3].data() : nullptr},
                                      h.data(), view(y));
    } else {
      reference::selective_scan(problem,
                                {view(rows[0]), view(rows[1]), view(rows[2]), view(rows[3]),
                                 params[0].data(), c.with_d ? params[1].data() : nullptr},
                                h.data(), view(y));
    }
  }
  /// Afterwards outputs and states are the sizes that they would have if nothing cancelled.
  void make_absolute() {
    for (auto& each : rows) {
      for (double& x : each.data) x = std::abs(x);
    }
    for (auto& each : state) {
      for (size_t i = 0; i < each.size(); i += c.complex ? 2 : 1) {
        each[i] = c.complex ? std::hypot(each[i], each[i + 1]) : std::abs(each[i]);
        if (c.complex) each[i + 1] = 0;
      }
    }
    for (double& x : params.back()) x = std::abs(x);
    if (!c.complex) return;
    // |exp(dt·A)| and a bound of the input's weight: those of A's real part.
    for (size_t i = 0; i < params[0].size(); i += 2) {
      params[0][i + 1] = 0;
      params[1][i] = std::hypot(params[1][i], params[1][i + 1]);
      params[1][i + 1] = 0;
    }
  }

  ScanCase c;
  DiagonalScanProblem problem;
  std::vector<Rows<double>> rows;
  DoubleVectors params, state, final_state;
  Rows<double> y;
};

/// Rounding errors of a sum of n terms grow like sqrt(n). A factor that was rounded once multiplies
/// at every token, so the complex states' errors grow with their memory: about 20 tokens here.
double tolerance(const ScanTensors& t) {
  const double factor = t.c.complex ? 16 : 8;
  return factor * kEps * std::sqrt(static_cast<double>(t.longest() + t.c.state_dim));
}

void expect_near_reference(ScanTensors& t, Rows<float>& y, const Vectors& state) {
  ScanReference want(t), magnitude(t);
  want.run();
  magnitude.make_absolute();
  magnitude.run();
  const double bound = tolerance(t);
  for (int64_t row = 0; row < t.num_rows; ++row) {
    for (int64_t e = 0; e < t.c.channels; ++e) {
      const double expected = want.y.at(row, 0)[e];
      const double got = static_cast<double>(y.at(row, 0)[e]);
      ASSERT_EQ(std::isnan(expected), std::isnan(got)) << "row " << row << " channel " << e;
      if (std::isnan(expected)) continue;  // padding: both untouched
      ASSERT_NEAR(got, expected, bound * magnitude.y.at(row, 0)[e])
          << "row " << row << " channel " << e;
    }
  }
  for (size_t i = 0; i < state.size(); ++i) {
    for (size_t j = 0; j < state[i].size(); ++j) {
      const size_t real = t.c.complex ? j / 2 * 2 : j;
      ASSERT_NEAR(static_cast<double>(state[i][j]), want.final_state[i][j],
                  bound * magnitude.final_state[i][real]);
    }
  }
}

class DiagonalScan : public testing::TestWithParam<ScanCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, DiagonalScan, testing::ValuesIn(cases()),
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

TEST_P(DiagonalScan, BackwardMatchesFiniteDifferences) {
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

TEST_P(DiagonalScan, BackwardAddsToParametersAndThreadsGiveTheSameBits) {
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

TEST(DiagonalScanEdges, EmptySequencesAndBatches) {
  for (bool complex : {false, true}) {
    for_each_target([&] {
      const ScanGradients g({"empty", complex, 5, 3, {0, 0}}, nullptr);
      EXPECT_EQ(g.dinitial, g.dfinal);
      for (const auto& each : g.dparams) {
        for (float x : each) EXPECT_EQ(x, 0.0f);
      }
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

TEST(DiagonalScanEdges, HugeStepsHaveFiniteGradients) {
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
