#include "mixers/_template/_template.h"

namespace tarn::mixers::_template {
namespace {

/// s after one token of one head, from all tokens up to it by Horner's rule: the powers of the
/// decay are never formed, so none of them can underflow on its own.
void one_token(const OpArgs<float>& args, int64_t sequence, int64_t head, int64_t token,
               const float* initial, float* s) {
  const Config& config = config_of(args.config);
  const int64_t begin = args.sequences.begin[sequence];
  for (int64_t c = 0; c < config.value_dim; ++c) {
    float value = initial != nullptr ? initial[c] : 0.0f;
    for (int64_t t = 0; t <= token; ++t) {
      const float v = args.inputs[1].at(begin + t, head)[c];
      value = config.decay * value + (1.0f - config.decay) * v;
    }
    s[c] = value;
  }
}

}  // namespace

void parallel_forward(const OpArgs<float>& args) noexcept {
  const Config& config = config_of(args.config);
  const auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t i = task / config.num_heads;
      const int64_t h = task % config.num_heads;
      float* kept = args.state ? args.state.tensors[0][i] + h * config.value_dim : nullptr;
      for (int64_t t = 0; t < args.sequences.length[i]; ++t) {
        const int64_t row = args.sequences.begin[i] + t;
        float* out = args.out.at(row, h);
        one_token(args, i, h, t, kept, out);
        if (kept != nullptr && t + 1 == args.sequences.length[i]) {
          for (int64_t c = 0; c < config.value_dim; ++c) kept[c] = out[c];
        }
        const float* q = args.inputs[0].at(row, h);
        for (int64_t c = 0; c < config.value_dim; ++c) out[c] *= q[c];
      }
    }
  };
  parallel_for(args.pool, args.sequences.count * config.num_heads, body);
}

}  // namespace tarn::mixers::_template
