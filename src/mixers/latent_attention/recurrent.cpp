#include <algorithm>
#include <cmath>

#include "kernels/latent_attention.h"
#include "mixers/latent_attention/latent_attention.h"

namespace tarn::mixers::latent_attention {
namespace {

double dot(int64_t size, const double* a, const double* b) {
  double sum = 0.0;
  for (int64_t c = 0; c < size; ++c) sum += a[c] * b[c];
  return sum;
}

/// The latents of one head and sequence.
struct Latents {
  const Config& config;
  const double* queries;
  double* log_sum;
  double* keys;
  double* values;

  void absorb(const double* k, const double* v) const {
    for (int64_t l = 0; l < config.num_latents; ++l) {
      const double score = config.scale * dot(config.key_dim, queries + l * config.key_dim, k);
      const double maximum = std::max(log_sum[l], score);
      const double total =
          maximum + std::log(std::exp(log_sum[l] - maximum) + std::exp(score - maximum));
      const double old_part = std::exp(log_sum[l] - total);
      const double new_part = std::exp(score - total);
      log_sum[l] = total;
      double* key = keys + l * config.key_dim;
      double* value = values + l * config.value_dim;
      for (int64_t c = 0; c < config.key_dim; ++c) key[c] = old_part * key[c] + new_part * k[c];
      for (int64_t c = 0; c < config.value_dim; ++c) {
        value[c] = old_part * value[c] + new_part * v[c];
      }
    }
  }
  void read(const double* q, double* out) const {
    std::vector<double> weights;
    for (int64_t l = 0; l < config.num_latents; ++l) {
      weights.push_back(config.scale * dot(config.key_dim, q, keys + l * config.key_dim));
    }
    const double maximum = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (double& weight : weights) sum += weight = std::exp(weight - maximum);
    std::fill_n(out, config.value_dim, 0.0);
    for (int64_t l = 0; l < config.num_latents; ++l) {
      for (int64_t c = 0; c < config.value_dim; ++c) {
        out[c] += weights[static_cast<size_t>(l)] / sum * values[l * config.value_dim + c];
      }
    }
  }
};

}  // namespace

void recurrent_forward(const OpArgs<double>& args) {
  const Config& config = config_of(args.config);
  const int64_t L = config.num_latents;
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    const int64_t begin = args.sequences.begin[i];
    const int64_t end = begin + args.sequences.length[i];
    for (int64_t h = 0; h < config.num_heads; ++h) {
      std::vector<double> log_sum(static_cast<size_t>(L), kernels::kNoLatentSum);
      std::vector<double> keys(static_cast<size_t>(L * config.key_dim));
      std::vector<double> values(static_cast<size_t>(L * config.value_dim));
      const double* queries = args.params[0] + h * L * config.key_dim;
      Latents latents{config, queries, log_sum.data(), keys.data(), values.data()};
      if (args.state) {
        latents.log_sum = args.state.tensors[0][i] + h * L;
        latents.keys = args.state.tensors[1][i] + h * L * config.key_dim;
        latents.values = args.state.tensors[2][i] + h * L * config.value_dim;
      }
      for (int64_t row = begin; row < end; ++row) {
        latents.absorb(args.inputs[1].at(row, h), args.inputs[2].at(row, h));
        if (config.causal) latents.read(args.inputs[0].at(row, h), args.out.at(row, h));
      }
      for (int64_t row = begin; row < end && !config.causal; ++row) {
        latents.read(args.inputs[0].at(row, h), args.out.at(row, h));
      }
    }
  }
}

}  // namespace tarn::mixers::latent_attention
