#include "mixers/_template/_template.h"

namespace tarn::mixers::_template {

void recurrent_forward(const OpArgs<double>& args) {
  const Config& config = config_of(args.config);
  const double decay = config.decay;
  std::vector<double> state(static_cast<size_t>(config.value_dim));
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    for (int64_t h = 0; h < config.num_heads; ++h) {
      double* kept = args.state ? args.state.tensors[0][i] + h * config.value_dim : nullptr;
      for (size_t c = 0; c < state.size(); ++c) state[c] = kept != nullptr ? kept[c] : 0.0;
      for (int64_t t = 0; t < args.sequences.length[i]; ++t) {
        const int64_t row = args.sequences.begin[i] + t;
        for (size_t c = 0; c < state.size(); ++c) {
          state[c] = decay * state[c] + (1.0 - decay) * args.inputs[1].at(row, h)[c];
          args.out.at(row, h)[c] = args.inputs[0].at(row, h)[c] * state[c];
        }
      }
      for (size_t c = 0; kept != nullptr && c < state.size(); ++c) kept[c] = state[c];
    }
  }
}

}  // namespace tarn::mixers::_template
