#include "kernels/state_update.h"

#include <algorithm>
#include <vector>

namespace tarn::kernels::reference {
namespace {

/// One head of one sequence; `s` [F, V] and `z` [F] are updated.
struct HeadLoop {
  const StateUpdateProblem& problem;
  int64_t head;
  double* s;
  double* z;
  std::vector<double> phi;

  int64_t feature_dim() const { return problem.feature_map.feature_dim; }

  void write(int64_t row, Heads<const double> k, Heads<const double> v) {
    problem.feature_map.reference(problem.feature_map, k.at(row, head), phi.data());
    for (int64_t f = 0; f < feature_dim(); ++f) {
      z[f] += phi[f];
      for (int64_t c = 0; c < problem.value_dim; ++c) {
        s[f * problem.value_dim + c] += phi[f] * v.at(row, head)[c];
      }
    }
  }

  void read(int64_t row, Heads<const double> q, Heads<double> out) {
    problem.feature_map.reference(problem.feature_map, q.at(row, head), phi.data());
    double denominator = static_cast<double>(problem.eps);
    for (int64_t f = 0; f < feature_dim(); ++f) denominator += phi[f] * z[f];
    if (!problem.normalise) denominator = 1;
    for (int64_t c = 0; c < problem.value_dim; ++c) {
      double sum = 0;
      for (int64_t f = 0; f < feature_dim(); ++f) sum += phi[f] * s[f * problem.value_dim + c];
      out.at(row, head)[c] = sum / denominator;
    }
  }
};

}  // namespace

void state_update(const StateUpdateProblem& problem, bool causal, Heads<const double> q,
                  Heads<const double> k, Heads<const double> v, StatePointers<double> state,
                  Heads<double> out) {
  const int64_t features = problem.feature_map.feature_dim;
  const int64_t size = features * problem.value_dim;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    const int64_t begin = problem.sequences.begin[i];
    const int64_t end = begin + problem.sequences.length[i];
    for (int64_t head = 0; head < problem.num_heads; ++head) {
      std::vector<double> s(size, 0.0);
      std::vector<double> z(features, 0.0);
      double* given_s = state.s != nullptr ? state.s[i] + head * size : nullptr;
      double* given_z = state.z != nullptr ? state.z[i] + head * features : nullptr;
      if (given_s != nullptr) s.assign(given_s, given_s + size);
      if (given_z != nullptr) z.assign(given_z, given_z + features);
      HeadLoop loop{problem, head, s.data(), z.data(), std::vector<double>(features)};
      if (!causal) {
        for (int64_t row = begin; row < end; ++row) loop.write(row, k, v);
      }
      for (int64_t row = begin; row < end; ++row) {
        if (causal) loop.write(row, k, v);
        loop.read(row, q, out);
      }
      if (given_s != nullptr) std::copy(s.begin(), s.end(), given_s);
      if (given_z != nullptr) std::copy(z.begin(), z.end(), given_z);
    }
  }
}

}  // namespace tarn::kernels::reference
