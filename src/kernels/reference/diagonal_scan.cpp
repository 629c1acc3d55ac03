#include "kernels/diagonal_scan.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <vector>

namespace tarn::kernels::reference {
namespace {

/// Calls `pass(begin, end, h)` per sequence with its state of `size` numbers, or with zeros.
template <class Pass>
void for_each_sequence(const DiagonalScanProblem& problem, int64_t size, double* const* state,
                       const Pass& pass) {
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    std::vector<double> h(size, 0.0);
    if (state != nullptr) h.assign(state[i], state[i] + size);
    const int64_t begin = problem.sequences.begin[i];
    pass(begin, begin + problem.sequences.length[i], h.data());
    if (state != nullptr) std::copy(h.begin(), h.end(), state[i]);
  }
}

}  // namespace

void selective_scan(const DiagonalScanProblem& problem, const SelectiveScanInputs<double>& inputs,
                    double* const* state, Rows<double> y) {
  const int64_t E = problem.num_channels;
  const int64_t N = problem.state_dim;
  for_each_sequence(problem, E * N, state, [&](int64_t begin, int64_t end, double* h) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t e = 0; e < E; ++e) {
        const double x = inputs.x.at(row)[e];
        const double delta = inputs.delta.at(row)[e];
        double sum = inputs.d != nullptr ? inputs.d[e] * x : 0;
        for (int64_t n = 0; n < N; ++n) {
          double& s = h[e * N + n];
          s = std::exp(delta * inputs.a[e * N + n]) * s + delta * x * inputs.b.at(row)[n];
          sum += inputs.c.at(row)[n] * s;
        }
        y.at(row)[e] = sum;
      }
    }
  });
}

void diagonal_state_space(const DiagonalScanProblem& problem,
                          const DiagonalStateSpaceInputs& inputs, double* const* state,
                          Rows<double> y) {
  using Complex = std::complex<double>;
  const int64_t E = problem.num_channels;
  const int64_t N = problem.state_dim;
  const auto pair = [](const double* x, int64_t i) { return Complex(x[2 * i], x[2 * i + 1]); };
  for_each_sequence(problem, 2 * E * N, state, [&](int64_t begin, int64_t end, double* h) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t e = 0; e < E; ++e) {
        const double u = inputs.u.at(row)[e];
        double sum = inputs.d != nullptr ? inputs.d[e] * u : 0;
        for (int64_t n = e * N; n < (e + 1) * N; ++n) {
          const Complex a = pair(inputs.a, n);
          const Complex transition = std::exp(inputs.dt[e] * a);
          const Complex s = transition * pair(h, n) + (transition - 1.0) / a * u;
          h[2 * n] = s.real();
          h[2 * n + 1] = s.imag();
          sum += 2 * (pair(inputs.c, n) * s).real();
        }
        y.at(row)[e] = sum;
      }
    }
  });
}

}  // namespace tarn::kernels::reference
