#include "kernels/state_transition.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tarn::kernels::reference {
namespace {

/// One head of one sequence; `s` [K, V] is updated.
struct HeadLoop {
  const StateTransitionProblem& problem;
  const StateTransitionRows<const double>& rows;
  int64_t head;
  double* s;

  int64_t key_head() const { return head / (problem.num_heads / problem.num_key_heads); }
  double decay(int64_t row, int64_t channel) const {
    switch (problem.decay) {
      case Decay::kNone: return 1.0;
      case Decay::kPerHead: return std::exp(problem.head_decay[head]);
      case Decay::kPerToken: return std::exp(rows.g.at(row, head)[0]);
      case Decay::kPerChannel: return std::exp(rows.g.at(row, head)[channel]);
    }
    return 1.0;
  }
  /// Sᵀ x, one value channel.
  double answer(const double* x, int64_t value) const {
    double sum = 0;
    for (int64_t c = 0; c < problem.key_dim; ++c) sum += x[c] * s[c * problem.value_dim + value];
    return sum;
  }

  void token(int64_t row, double* out) {
    const int64_t V = problem.value_dim;
    const double* k = rows.k.at(row, key_head());
    const double* v = rows.v.at(row, head);
    const double beta =
        rows.beta && problem.erase != Erase::kRankOne ? rows.beta.at(row, head)[0] : 1.0;
    std::vector<double> answers(V, 0.0);
    if (problem.erase == Erase::kRankOne) {
      for (int64_t i = 0; i < V; ++i) answers[i] = answer(rows.b.at(row, key_head()), i);
    }
    for (int64_t c = 0; c < problem.key_dim; ++c) {
      const double alpha = decay(row, c);
      for (int64_t i = 0; i < V; ++i) s[c * V + i] *= alpha;
    }
    if (problem.erase == Erase::kDelta) {
      for (int64_t i = 0; i < V; ++i) answers[i] = answer(k, i);
    }
    for (int64_t c = 0; c < problem.key_dim; ++c) {
      for (int64_t i = 0; i < V; ++i) {
        double& x = s[c * V + i];
        if (problem.erase == Erase::kRankOne) {
          x += rows.a.at(row, key_head())[c] * answers[i] + k[c] * v[i];
        } else {
          x += beta * k[c] * (v[i] - answers[i]);
        }
      }
    }
    for (int64_t i = 0; i < V; ++i) {
      out[i] = problem.scale * answer(rows.q.at(row, key_head()), i);
    }
  }
};

}  // namespace

void state_transition(const StateTransitionProblem& problem,
                      const StateTransitionRows<const double>& rows, double* const* state,
                      Heads<double> out) {
  const int64_t size = problem.key_dim * problem.value_dim;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    const int64_t begin = problem.sequences.begin[i];
    const int64_t end = begin + problem.sequences.length[i];
    for (int64_t head = 0; head < problem.num_heads; ++head) {
      double* given = state != nullptr ? state[i] + head * size : nullptr;
      std::vector<double> s(size, 0.0);
      if (given != nullptr) s.assign(given, given + size);
      HeadLoop loop{problem, rows, head, s.data()};
      for (int64_t row = begin; row < end; ++row) loop.token(row, out.at(row, head));
      if (given != nullptr) std::copy(s.begin(), s.end(), given);
    }
  }
}

}  // namespace tarn::kernels::reference
