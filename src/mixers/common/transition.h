#pragma once

#include <vector>

#include "kernels/state_transition.h"
#include "mixers/mixer.h"

namespace tarn::mixers {

/// The config of every mechanism whose operator is kernels/state_transition.h: what the kernel needs,
/// filled by the mechanism's parser. A mechanism adds its own keys by deriving from it.
struct TransitionConfig : MixerConfig {
  int64_t model_dim = 0;
  int64_t num_heads = 0;
  int64_t num_key_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  kernels::Decay decay = kernels::Decay::kNone;
  kernels::Erase erase = kernels::Erase::kNone;
  bool has_beta = false;           ///< the write strength β is an input
  double scale = 1.0;              ///< of the queries
  std::vector<double> head_decay;  ///< Decay::kPerHead: g of each head

  int64_t keys_width() const { return num_key_heads * key_dim; }
  int64_t values_width() const { return num_heads * value_dim; }
};

/// Inputs: q, k, v; then g (Decay::kPerToken, kPerChannel); then beta if there is one; then, with
/// Erase::kRankOne, kappa (of length 1) and eta in [0, 1]: a = −kappa∘eta, b = kappa.
OpShape transition_shape(const MixerConfig& config);
/// `s` [H, K, V], from zero.
std::vector<StateSpec> transition_states(const MixerConfig& config);

/// The forms of MixerDef.
void transition_recurrent(const OpArgs<double>& args);
void transition_chunk(const OpArgs<float>& args) noexcept;
void transition_step(const OpArgs<float>& args) noexcept;
void transition_backward(const OpBackwardArgs& args) noexcept;

/// Per token and head, products with the state: 4·K·V forward (update, read), 2·K·V more for what a
/// delta erases, 4·K·V for a general rank-one erasure; backward, with the states computed again, 10, 16
/// and 22.
double transition_flops(const MixerConfig& config, OpPass pass, int64_t tokens);

/// Reads num_heads (also of keys), key_dim and value_dim (= key_dim); queries are scaled by K^(−1/2).
void read_heads(JsonReader& reader, TransitionConfig& config);

/// What a mechanism of the family says itself.
struct TransitionMixer {
  const char* name;
  const char* summary;
  const char* recurrence;
  const char* source;
  const char* state_formula;
  decltype(MixerDef::read_config) read_config;
  decltype(MixerDef::layer) layer;
  decltype(MixerDef::example_configs) example_configs;
};

/// Its definition: operator, state and forms are those above.
constexpr MixerDef transition_mixer(const TransitionMixer& own) {
  return {
      .name = own.name,
      .summary = own.summary,
      .recurrence = own.recurrence,
      .source = own.source,
      .state_formula = own.state_formula,
      .bounded_state = true,
      .read_config = own.read_config,
      .state_specs = transition_states,
      .op_shape = transition_shape,
      .recurrent = transition_recurrent,
      .parallel = nullptr,
      .chunk = transition_chunk,
      .step = transition_step,
      .backward = transition_backward,
      .flops = transition_flops,
      .layer = own.layer,
      .example_configs = own.example_configs,
  };
}

}  // namespace tarn::mixers
