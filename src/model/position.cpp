#include "model/position.h"

#include <cmath>

namespace tarn::model {

float sinusoid_amplitude(const ModelConfig& config) {
  return config.embedding_scale * std::sqrt(2.0f);
}

void sinusoidal_row(int64_t position, int64_t dim, float amplitude, float* row) {
  for (int64_t channel = 0; channel < dim; ++channel) {
    const double exponent = -2.0 * static_cast<double>(channel / 2) / static_cast<double>(dim);
    const double angle = static_cast<double>(position) * std::pow(10000.0, exponent);
    const double value = channel % 2 == 0 ? std::sin(angle) : std::cos(angle);
    row[channel] = static_cast<float>(static_cast<double>(amplitude) * value);
  }
}

}  // namespace tarn::model
