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

void dpfp(const FeatureMap& map, const double* x, double* phi) {
  const int64_t width = 2 * map.input_dim;
  const auto channel = [&](int64_t m) {
    m %= width;
    return std::max(m < map.input_dim ? x[m] : -x[m - map.input_dim], 0.0);
  };
  for (int64_t f = 0; f < map.feature_dim; ++f) {
    phi[f] = channel(f % width) * channel(f % width + f / width + 1);
  }
}

void taylor(const FeatureMap& map, const double* x, double* phi) {
  const int64_t dim = map.input_dim;
  const double root = std::sqrt(static_cast<double>(dim));
  phi[0] = 1;
  for (int64_t i = 0; i < dim; ++i) {
    phi[1 + i] = x[i] / std::sqrt(root);
    for (int64_t j = 0; j < dim; ++j) {
      phi[1 + dim + i * dim + j] = x[i] * x[j] / (root * std::sqrt(2.0));
    }
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
