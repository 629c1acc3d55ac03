#include <algorithm>

#include "mixers/_template/_template.h"

namespace tarn::mixers::_template {
namespace {

// Channels that one pass over the tokens holds in registers.
constexpr int64_t kBlock = 16;

struct Slice {
  int64_t sequence = 0;
  int64_t head = 0;
  int64_t first = 0;  ///< channel
  int64_t width = 0;  ///< channels, at most kBlock
};

/// Row `index` of state tensor 0, at the slice's channels; null when there is no such state.
template <class T>
T* state_of(const StateRefs<T>& state, const Slice& slice, int64_t value_dim) {
  if (!state) return nullptr;
  return state.tensors[0][slice.sequence] + slice.head * value_dim + slice.first;
}

/// dq_t = do_t ∘ s_t, with s computed again from the initial state.
void scan_queries(const OpBackwardArgs& args, const Slice& slice) {
  const OpArgs<float>& forward = args.forward;
  const Config& config = config_of(forward.config);
  float state[kBlock] = {};
  const float* initial = state_of(forward.state, slice, config.value_dim);
  if (initial != nullptr) std::copy_n(initial, slice.width, state);
  const int64_t begin = forward.sequences.begin[slice.sequence];
  for (int64_t row = begin; row < begin + forward.sequences.length[slice.sequence]; ++row) {
    const float* v = forward.inputs[1].at(row, slice.head) + slice.first;
    const float* dout = args.dout.at(row, slice.head) + slice.first;
    float* dq = args.dinputs[0].at(row, slice.head) + slice.first;
    for (int64_t c = 0; c < slice.width; ++c) {
      state[c] = config.decay * state[c] + (1.0f - config.decay) * v[c];
      dq[c] = dout[c] * state[c];
    }
  }
}

/// g_t = q_t ∘ do_t + a·g_{t+1} from the last token to the first; dv_t = (1 − a)·g_t.
void scan_values(const OpBackwardArgs& args, const Slice& slice) {
  const OpArgs<float>& forward = args.forward;
  const Config& config = config_of(forward.config);
  float carried[kBlock] = {};  // a·g_{t+1}; at the end of the sequence the final state's gradient
  const float* dfinal = state_of(args.dfinal, slice, config.value_dim);
  if (dfinal != nullptr) std::copy_n(dfinal, slice.width, carried);
  const int64_t begin = forward.sequences.begin[slice.sequence];
  for (int64_t row = begin + forward.sequences.length[slice.sequence] - 1; row >= begin; --row) {
    const float* q = forward.inputs[0].at(row, slice.head) + slice.first;
    const float* dout = args.dout.at(row, slice.head) + slice.first;
    float* dv = args.dinputs[1].at(row, slice.head) + slice.first;
    for (int64_t c = 0; c < slice.width; ++c) {
      const float g = q[c] * dout[c] + carried[c];
      dv[c] = (1.0f - config.decay) * g;
      carried[c] = config.decay * g;
    }
  }
  float* dinitial = state_of(args.dinitial, slice, config.value_dim);
  if (dinitial != nullptr) std::copy_n(carried, slice.width, dinitial);
}

}  // namespace

void chunk_backward(const OpBackwardArgs& args) noexcept {
  const Config& config = config_of(args.forward.config);
  const auto body = [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      for (int64_t c = 0; c < config.value_dim; c += kBlock) {
        const Slice slice{task / config.num_heads, task % config.num_heads, c,
                          std::min(kBlock, config.value_dim - c)};
        scan_queries(args, slice);
        scan_values(args, slice);
      }
    }
  };
  parallel_for(args.forward.pool, args.forward.sequences.count * config.num_heads, body);
}

}  // namespace tarn::mixers::_template
