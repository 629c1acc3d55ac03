#include "kernels/softmax_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace tarn::kernels::reference {

void softmax_attention(const SoftmaxProblem& problem, Heads<const double> q,
                       KeyRows<const double> k, KeyRows<const double> v, Heads<double> out) {
  const int64_t group = problem.num_heads / problem.num_kv_heads;
  std::vector<double> weights;
  for (int64_t i = 0; i < problem.queries.count; ++i) {
    const int64_t n = problem.queries.length[i];
    const int64_t m = problem.keys.length[i];
    for (int64_t t = 0; t < n; ++t) {
      const int64_t visible = problem.causal ? std::clamp<int64_t>(m - n + t + 1, 0, m) : m;
      for (int64_t h = 0; h < problem.num_heads; ++h) {
        const double* query = q.at(problem.queries.begin[i] + t, h);
        double* result = out.at(problem.queries.begin[i] + t, h);
        std::fill(result, result + problem.value_dim, 0.0);
        if (visible == 0) continue;
        weights.assign(static_cast<size_t>(visible), 0.0);
        for (int64_t j = 0; j < visible; ++j) {
          const double* key = k.at(problem.keys, i, j, h / group);
          double dot = 0.0;
          for (int64_t c = 0; c < problem.key_dim; ++c) dot += query[c] * key[c];
          weights[static_cast<size_t>(j)] = problem.scale * dot;
        }
        const double maximum = *std::max_element(weights.begin(), weights.end());
        double sum = 0.0;
        for (double& weight : weights) sum += weight = std::exp(weight - maximum);
        for (int64_t j = 0; j < visible; ++j) {
          const double* value = v.at(problem.keys, i, j, h / group);
          const double weight = weights[static_cast<size_t>(j)] / sum;
          for (int64_t c = 0; c < problem.value_dim; ++c) result[c] += weight * value[c];
        }
      }
    }
  }
}

void rotary(const Sequences& sequences, const int64_t* first_position, int64_t num_heads,
            int64_t rotary_dim, double base, bool inverse, Heads<double> x) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < sequences.count; ++i) {
    for (int64_t r = 0; r < sequences.length[i]; ++r) {
      for (int64_t h = 0; h < num_heads; ++h) {
        double* row = x.at(sequences.begin[i] + r, h);
        for (int64_t c = 0; c < half; ++c) {
          const double frequency =
              std::pow(base, -2.0 * static_cast<double>(c) / static_cast<double>(rotary_dim));
          const double angle = static_cast<double>(first_position[i] + r) * frequency;
          const double cosine = std::cos(angle);
          const double sine = inverse ? -std::sin(angle) : std::sin(angle);
          const double a = row[c];
          const double b = row[c + half];
          row[c] = a * cosine - b * sine;
          row[c + half] = a * sine + b * cosine;
        }
      }
    }
  }
}

}  // namespace tarn::kernels::reference
