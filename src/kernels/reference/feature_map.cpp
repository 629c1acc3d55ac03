#include "kernels/reference/feature_map.h"

#include <algorithm>
#include <cmath>

namespace tarn::kernels::reference {

void identity(const FeatureMap& map, const double* x, double* phi) {
  for (int64_t i = 0; i < map.input_dim; ++i) phi[i] = x[i];
}

void elu_plus_one(const FeatureMap& map, const double* x, double* phi) {
  for (int64_t i = 0; i < map.input_dim; ++i) phi[i] = x[i] > 0 ? x[i] + 1 : std::exp(x[i]);
}

void relu(const FeatureMap& map, const double* x, double* phi) {
  for (int64_t i = 0; i < map.input_dim; ++i) phi[i] = std::max(x[i], 0.0);
}

void squared_relu(const FeatureMap& map, const double* x, double* phi) {
  for (int64_t i = 0; i < map.input_dim; ++i) {
    const double positive = std::max(x[i], 0.0);
    phi[i] = positive * positive;
  }
}

void favor(const FeatureMap& map, const double* x, double* phi) {
  const int64_t columns = map.feature_dim / 2;
  const double scale = std::pow(static_cast<double>(map.input_dim), -0.25);
  double squares = 0;
  for (int64_t i = 0; i < map.input_dim; ++i) squares += scale * x[i] * scale * x[i];
  const double h = squares / 2 + std::log(static_cast<double>(map.feature_dim)) / 2;
  for (int64_t j = 0; j < columns; ++j) {
    double u = 0;
    for (int64_t i = 0; i < map.input_dim; ++i) {
      u += scale * x[i] * static_cast<double>(map.parameters[i * columns + j]);
    }
    phi[j] = std::exp(u - h);
    phi[columns + j] = std::exp(-u - h);
  }
}

}  // namespace tarn::kernels::reference
