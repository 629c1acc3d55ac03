#include "kernels/feature_map.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace tarn::kernels {

void draw_orthogonal_features(int64_t dim, int64_t columns, uint64_t seed, float* omega) {
  // Each block of `dim` columns has a stream of its own, so more columns extend the same draw.
  std::vector<double> basis(dim * dim);
  for (int64_t first = 0; first < columns; first += dim) {
    Philox random{.seed = seed, .stream = static_cast<uint64_t>(first / dim)};
    const int64_t width = std::min(dim, columns - first);
    for (int64_t j = 0; j < width; ++j) {
      double* direction = &basis[j * dim];
      double length = 0;
      for (int64_t i = 0; i < dim; ++i) {
        const double other = static_cast<double>(random.next_normal());
        direction[i] = static_cast<double>(random.next_normal());
        length += other * other;
      }
      // Twice, because one sweep of Gram-Schmidt loses orthogonality to rounding.
      for (int sweep = 0; sweep < 2; ++sweep) {
        for (int64_t earlier = 0; earlier < j; ++earlier) {
          double overlap = 0;
          for (int64_t i = 0; i < dim; ++i) overlap += basis[earlier * dim + i] * direction[i];
          for (int64_t i = 0; i < dim; ++i) direction[i] -= overlap * basis[earlier * dim + i];
        }
      }
      double norm = 0;
      for (int64_t i = 0; i < dim; ++i) norm += direction[i] * direction[i];
      norm = std::sqrt(norm);
      for (int64_t i = 0; i < dim; ++i) direction[i] /= norm;
      length = std::sqrt(length);
      for (int64_t i = 0; i < dim; ++i) {
        omega[i * columns + first + j] = static_cast<float>(length * direction[i]);
      }
    }
  }
}

}  // namespace tarn::kernels
