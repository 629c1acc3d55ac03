#include <algorithm>
#include <cmath>

#include "kernels/hash.h"
#include "mixers/common/stage_math.h"
#include "mixers/lsh_attention/lsh_attention.h"

namespace tarn::mixers::lsh_attention {

void buckets_of(const Config& config, int64_t round, int64_t rows, kernels::Rows<const float> x,
                int32_t* bucket) noexcept {
  const int64_t half = config.num_buckets / 2;
  kernels::largest_projections(rows, config.key_dim, half, x,
                               config.rotations.data() + round * config.key_dim * half, bucket);
}

template <class T>
T key_norm(int64_t size, const T* x) {
  const T square = sum_of<T>(size, [x](int64_t i) { return x[i] * x[i]; });
  return std::max(std::sqrt(square), static_cast<T>(1e-6));
}

template float key_norm(int64_t size, const float* x);
template double key_norm(int64_t size, const double* x);

void recurrent_forward(const OpArgs<double>& args) {
  const Config& config = config_of(args.config);
  const int64_t heads = config.num_heads;
  const int64_t key_dim = config.key_dim;
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    const int64_t seen = position_of(args.positions, i);
    const auto tokens = static_cast<size_t>(seen + args.sequences.length[i]);
    std::vector<double> own[3];
    double* state[3];
    const int64_t sizes[3] = {heads * key_dim, heads * config.value_dim, heads * config.rounds};
    for (size_t j = 0; j < 3; ++j) {
      own[j].resize(args.state ? 0 : tokens * static_cast<size_t>(sizes[j]));
      state[j] = args.state ? args.state.tensors[j][i] : own[j].data();
    }
    for (int64_t r = 0; r < args.sequences.length[i]; ++r) {
      const int64_t row = args.sequences.begin[i] + r;
      const int64_t t = seen + r;
      for (int64_t h = 0; h < heads; ++h) {
        const double* q = args.inputs[0].at(row, h);
        const auto key = [&](int64_t token) { return state[0] + (token * heads + h) * key_dim; };
        const auto value = [&](int64_t token) {
          return state[1] + (token * heads + h) * config.value_dim;
        };
        const double norm = key_norm(key_dim, q);
        for (int64_t c = 0; c < key_dim; ++c) key(t)[c] = q[c] / norm;
        std::copy_n(args.inputs[1].at(row, h), config.value_dim, value(t));
        const std::vector<float> rounded(q, q + key_dim);
        std::vector<const double*> keys;
        std::vector<const double*> values;
        for (int64_t round = 0; round < config.rounds; ++round) {
          const auto bucket = [&](int64_t token) {
            return state[2] + (token * config.rounds + round) * heads + h;
          };
          int32_t own_bucket = 0;
          buckets_of(config, round, 1, {rounded.data(), 0}, &own_bucket);
          *bucket(t) = own_bucket;
          int64_t found = 0;
          for (int64_t j = t - 1; j >= 0 && found < config.chunk; --j) {
            if (std::llround(*bucket(j)) != own_bucket) continue;
            ++found;
            keys.push_back(key(j));
            values.push_back(value(j));
          }
        }
        if (keys.empty()) {
          keys.push_back(key(t));
          values.push_back(value(t));
        }
        attend_reference(config, q, keys, values, args.out.at(row, h));
      }
    }
  }
}

}  // namespace tarn::mixers::lsh_attention
