#include <algorithm>

#include "mixers/compressive_attention/compressive_attention.h"

namespace tarn::mixers::compressive_attention {
namespace {

/// Keys or values of one sequence: slots of the memory, then of the tokens.
struct Slots {
  double* data = nullptr;
  int64_t heads = 0;
  int64_t dim = 0;
  const double* weight = nullptr;
  double* at(int64_t slot, int64_t head) const { return data + (slot * heads + head) * dim; }
};

void compress(const Config& config, int64_t block, const Slots& slots) {
  const int64_t ring = config.window + config.compression;
  for (int64_t h = 0; h < slots.heads; ++h) {
    for (int64_t c = 0; c < slots.dim; ++c) {
      double sum = 0.0;
      double largest = 0.0;
      for (int64_t i = 0; i < config.compression; ++i) {
        const int64_t position = block * config.compression + i;
        const double x = slots.at(config.memory + position % ring, h)[c];
        largest = i == 0 ? x : std::max(largest, x);
        sum += config.pooling == Pooling::kConvolution
                   ? slots.weight[(h * config.compression + i) * slots.dim + c] * x
                   : x / static_cast<double>(config.compression);
      }
      slots.at(block % config.memory, h)[c] = config.pooling == Pooling::kMax ? largest : sum;
    }
  }
}

}  // namespace

void recurrent_forward(const OpArgs<double>& args) {
  const Config& config = config_of(args.config);
  const int64_t heads = config.num_kv_heads;
  const int64_t ring = config.window + config.compression;
  const auto slots = static_cast<size_t>(config.memory + ring);
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    std::vector<double> own[2];
    Slots tensors[2];
    for (size_t j = 0; j < 2; ++j) {
      const int64_t dim = j == 0 ? config.key_dim : config.value_dim;
      own[j].resize(args.state ? 0 : slots * static_cast<size_t>(heads * dim));
      tensors[j] = {args.state ? args.state.tensors[j][i] : own[j].data(), heads, dim,
                    args.params.empty() ? nullptr : args.params[j]};
    }
    for (int64_t r = 0; r < args.sequences.length[i]; ++r) {
      const int64_t row = args.sequences.begin[i] + r;
      const int64_t t = position_of(args.positions, i) + r;
      const int64_t blocks = config.blocks_after(t + 1);
      for (size_t j = 0; j < 2; ++j) {
        for (int64_t h = 0; h < heads; ++h) {
          std::copy_n(args.inputs[j + 1].at(row, h), tensors[j].dim,
                      tensors[j].at(config.memory + t % ring, h));
        }
        if (blocks > config.blocks_after(t)) compress(config, blocks - 1, tensors[j]);
      }
      for (int64_t h = 0; h < config.num_heads; ++h) {
        const int64_t kv_head = h / (config.num_heads / heads);
        std::vector<const double*> keys;
        std::vector<const double*> values;
        const auto see = [&](int64_t slot) {
          keys.push_back(tensors[0].at(slot, kv_head));
          values.push_back(tensors[1].at(slot, kv_head));
        };
        for (int64_t b = std::max<int64_t>(0, blocks - config.memory); b < blocks; ++b) {
          see(b % config.memory);
        }
        for (int64_t p = blocks * config.compression; p <= t; ++p) see(config.memory + p % ring);
        attend_reference(config, args.inputs[0].at(row, h), keys, values, args.out.at(row, h));
      }
    }
  }
}

}  // namespace tarn::mixers::compressive_attention
