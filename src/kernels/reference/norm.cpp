#include "kernels/norm.h"

#include <cmath>

namespace tarn::kernels::reference {

void layer_norm(int64_t dim, const double* x, const double* weight, const double* bias, double eps,
                double* out) {
  double sum = 0.0;
  for (int64_t i = 0; i < dim; ++i) sum += x[i];
  const double mean = sum / static_cast<double>(dim);
  double squares = 0.0;
  for (int64_t i = 0; i < dim; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

void rms_norm(int64_t dim, const double* x, const double* weight, double eps, double* out) {
  double squares = 0.0;
  for (int64_t i = 0; i < dim; ++i) squares += x[i] * x[i];
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace tarn::kernels::reference
