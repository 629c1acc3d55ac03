#include <algorithm>

#include "mixers/_template/_template.h"

namespace tarn::mixers::_template {
namespace {

// Channels whose state one pass over the tokens holds in registers.
constexpr int64_t kBlock = 16;

/// Channels [first, first + width) of one head of one sequence; `kept` is their state or null.
void scan(const OpArgs<float>& args, int64_t sequence, int64_t head, int64_t first, int64_t width,
          float* kept) {
  const float decay = config_of(args.config).decay;
  const float write = 1.0f - decay;
  float state[kBlock] = {};
  if (kept != nullptr) std::copy_n(kept, width, state);
  const int64_t begin = args.sequences.begin[sequence];
  for (int64_t row = begin; row < begin + args.sequences.length[sequence]; ++row) {
    const float* q = args.inputs[0].at(row, head) + first;
    const float* v = args.inputs[1].at(row, head) + first;
    float* out = args.out.at(row, head) + first;
    for (int64_t c = 0; c < width; ++c) {
      state[c] = decay * state[c] + write * v[c];
      out[c] = q[c] * state[c];
    }
  }
  if (kept != nullptr) std::copy_n(state, width, kept);
}

}  // namespace

void chunk_forward(const OpArgs<float>& args) noexcept {
  const Config& config = config_of(args.config);
  // Sequences and heads do not depend on each other, so any split over threads gives the same bits.
  const auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / config.num_heads;
      const int64_t h = task % config.num_heads;
      float* kept = args.state ? args.state.tensors[0][i] + h * config.value_dim : nullptr;
      for (int64_t c = 0; c < config.value_dim; c += kBlock) {
        scan(args, i, h, c, std::min(kBlock, config.value_dim - c),
             kept != nullptr ? kept + c : nullptr);
      }
    }
  };
  parallel_for(args.pool, args.sequences.count * config.num_heads, body);
}

void step(const OpArgs<float>& args) noexcept { chunk_forward(args); }

}  // namespace tarn::mixers::_template
