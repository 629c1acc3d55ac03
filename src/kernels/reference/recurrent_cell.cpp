#include "kernels/recurrent_cell.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tarn::kernels::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// One token: x and r [gates_dim].
void lstm(int64_t E, const double* x, const double* r, double* h, double* c) {
  const auto gate = [&](int64_t which, int64_t e) { return x[which * E + e] + r[which * E + e]; };
  for (int64_t e = 0; e < E; ++e) {
    c[e] = sigmoid(gate(1, e)) * c[e] + sigmoid(gate(0, e)) * std::tanh(gate(2, e));
    h[e] = sigmoid(gate(3, e)) * std::tanh(c[e]);
  }
}

void gru(int64_t E, const double* x, const double* r, double* h) {
  for (int64_t e = 0; e < E; ++e) {
    const double reset = sigmoid(x[e] + r[e]);
    const double keep = sigmoid(x[E + e] + r[E + e]);
    const double candidate = std::tanh(x[2 * E + e] + reset * r[2 * E + e]);
    h[e] = (1 - keep) * candidate + keep * h[e];
  }
}

}  // namespace

void recurrent(const RecurrentProblem& problem, Rows<const double> gates, const double* weight,
               const double* bias, RecurrentState<double> state, Rows<double> out) {
  const int64_t E = problem.hidden_dim;
  const bool is_lstm = problem.cell == RecurrentCell::kLstm;
  std::vector<double> r(problem.gates_dim());
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    std::vector<double> h(E, 0.0);
    std::vector<double> c(E, 0.0);
    if (state.h != nullptr) h.assign(state.h[i], state.h[i] + E);
    if (state.h != nullptr && is_lstm) c.assign(state.c[i], state.c[i] + E);
    for (int64_t t = 0; t < problem.sequences.length[i]; ++t) {
      const int64_t row = problem.sequences.begin[i] + t;
      for (int64_t j = 0; j < problem.gates_dim(); ++j) {
        r[j] = bias != nullptr ? bias[j] : 0;
        for (int64_t e = 0; e < E; ++e) r[j] += weight[j * E + e] * h[e];
      }
      if (is_lstm) {
        lstm(E, gates.at(row), r.data(), h.data(), c.data());
      } else {
        gru(E, gates.at(row), r.data(), h.data());
      }
      std::copy(h.begin(), h.end(), out.at(row));
    }
    if (state.h != nullptr) std::copy(h.begin(), h.end(), state.h[i]);
    if (state.h != nullptr && is_lstm) std::copy(c.begin(), c.end(), state.c[i]);
  }
}

}  // namespace tarn::kernels::reference
