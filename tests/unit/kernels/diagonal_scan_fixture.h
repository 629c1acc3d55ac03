#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/diagonal_scan.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {

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

inline void PrintTo(const ScanCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<ScanCase> scan_cases() {
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
std::vector<T*> pointers(std::vector<std::vector<T>>& in) {
  std::vector<T*> out;
  for (auto& each : in) out.push_back(each.data());
  return out;
}

inline SelectiveScanInputs<float> selective(ScanTensors& t) {
  return {view(t.rows[0]), view(t.rows[1]),    view(t.rows[2]),
          view(t.rows[3]), t.params[0].data(), t.c.with_d ? t.params[1].data() : nullptr};
}
/// `hold` receives the discrete system.
inline DiagonalStateSpaceInputs state_space(ScanTensors& t, Vectors& hold) {
  hold.assign(2, std::vector<float>(t.params[0].size()));
  zero_order_hold(t.c.channels, t.c.state_dim, t.params[0].data(), t.params[2].data(),
                  hold[0].data(), hold[1].data());
  return {view(t.rows[0]), hold[0].data(), hold[1].data(), t.params[1].data(),
          t.c.with_d ? t.params[3].data() : nullptr};
}

/// Forward of `problem`, which may name a part of the case's tokens.
inline void forward(ScanTensors& t, const DiagonalScanProblem& problem, bool step,
                    float* const* state, Rows<float>& y, float* borders, Arena& arena) {
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
inline double tolerance(const ScanTensors& t) {
  const double factor = t.c.complex ? 16 : 8;
  return factor * kEps * std::sqrt(static_cast<double>(t.longest() + t.c.state_dim));
}

inline void expect_near_reference(ScanTensors& t, Rows<float>& y, const Vectors& state) {
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

}  // namespace tarn::kernels::test
