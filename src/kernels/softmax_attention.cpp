#include "kernels/softmax_attention.h"

#include <cmath>

namespace tarn::kernels {

void rotary(const Sequences& sequences, const int64_t* first_position, int64_t num_heads,
            int64_t rotary_dim, double base, bool inverse, Heads<float> x) noexcept {
  const int64_t half = rotary_dim / 2;
  for (int64_t c = 0; c < half; ++c) {
    const double frequency =
        std::pow(base, -2.0 * static_cast<double>(c) / static_cast<double>(rotary_dim));
    for (int64_t i = 0; i < sequences.count; ++i) {
      for (int64_t r = 0; r < sequences.length[i]; ++r) {
        const double angle = static_cast<double>(first_position[i] + r) * frequency;
        const float cosine = static_cast<float>(std::cos(angle));
        const float sine = static_cast<float>(inverse ? -std::sin(angle) : std::sin(angle));
        float* row = x.at(sequences.begin[i] + r, 0) + c;
        for (int64_t h = 0; h < num_heads; ++h, row += x.head_stride) {
          const float a = row[0];
          const float b = row[half];
          row[0] = a * cosine - b * sine;
          row[half] = a * sine + b * cosine;
        }
      }
    }
  }
}

}  // namespace tarn::kernels
