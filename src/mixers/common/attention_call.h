#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/softmax_attention.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// What mechanisms of the softmax family share: the config keys of queries, keys and values, the
/// operator's inputs, and calls of the kernel on a cache that grows with every token.
struct AttentionConfig : MixerConfig {
  int64_t model_dim = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t key_dim = 0;    ///< per head
  int64_t value_dim = 0;  ///< per head
  double scale = 1.0;
  int64_t rotary_dim = 0;  ///< leading channels that rotate; 0: none
  double rotary_base = 10000.0;
};

/// Reads num_heads, num_kv_heads, key_dim, value_dim and scale, and with `rotary` rotary_dim and
/// rotary_base.
void read_attention_config(JsonReader& reader, int64_t model_dim, AttentionConfig& config,
                           bool rotary = true);

/// Inputs q, k, v; log Σ exp is kept for the backward pass.
OpShape attention_shape(const AttentionConfig& config);

/// `k` and `v`, an entry per token; keys are stored rotated.
std::vector<StateSpec> attention_cache(const AttentionConfig& config);

/// 2·(K + V) per head and pair of query and key forward, 6·K + 4·V backward: scores and weighted
/// values; then scores again, weights' gradients and dv, dq and dk.
double attention_flops(const AttentionConfig& config, OpPass pass, double pairs);

/// A step that sees `keys` tokens, its own among them, and writes one entry of keys and values.
StateTraffic attention_traffic(const AttentionConfig& config, double keys);

/// The kernel's view of one call.
kernels::SoftmaxProblem attention_problem(const AttentionConfig& config,
                                          const kernels::Sequences& queries,
                                          const kernels::Sequences& keys, ThreadPool* pool);

/// `x` itself, or a copy of it from the arena that is rotated by position.
template <class T>
kernels::Heads<const T> rotated(const AttentionConfig& config, const kernels::Sequences& sequences,
                                const int64_t* positions, int64_t heads, kernels::Heads<const T> x,
                                Arena& arena);

/// Turns the gradients of rotated q and k into those of q and k, in place.
void rotate_back(const AttentionConfig& config, const kernels::Sequences& sequences,
                 const int64_t* positions, kernels::Heads<float> dq, kernels::Heads<float> dk,
                 Arena& arena);

/// Tokens that sequence i has seen before the call.
inline int64_t position_of(const int64_t* positions, int64_t sequence) {
  return positions == nullptr ? 0 : positions[sequence];
}

/// Which keys of a sequence queries see, one after the other; of the patterns each adds the keys
/// that those before it left out. Empty: all keys, or the causal prefix.
struct VisibleKeys {
  bool causal = true;
  std::vector<const kernels::KeyPattern*> patterns = {};
};

/// Forward and gradient on all tokens so far: this call's rows, or the cache of attention_cache with
/// this call's rows appended.
void cached_attention(const AttentionConfig& config, const VisibleKeys& visible,
                      const OpArgs<float>& args) noexcept;
void cached_attention_backward(const AttentionConfig& config, const VisibleKeys& visible,
                               const OpBackwardArgs& args) noexcept;

/// Whether query `head` of the token at position `query` sees the token at position `key` of a
/// sequence of `tokens` tokens.
using Sees = std::function<bool(int64_t head, int64_t query, int64_t key, int64_t tokens)>;

/// The definition in double precision: for each query the softmax over the keys that it sees.
void cached_attention_reference(const AttentionConfig& config, const Sees& sees,
                                const OpArgs<double>& args);

/// out = Σ_j p_j v_j with p = softmax(scale·q·k_j), in double precision; zeros without keys.
void attend_reference(const AttentionConfig& config, const double* q,
                      const std::vector<const double*>& keys,
                      const std::vector<const double*>& values, double* out);

}  // namespace tarn::mixers
