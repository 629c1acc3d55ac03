#include "mixers/common/transition.h"

#include <cmath>

#include "mixers/common/operator_rows.h"

namespace tarn::mixers {
namespace {

using kernels::Decay;
using kernels::Erase;
using kernels::Heads;
using kernels::StateTransitionProblem;
using kernels::StateTransitionRows;

const TransitionConfig& config_of(const MixerConfig* config) {
  return static_cast<const TransitionConfig&>(*config);
}

bool has_gates(const TransitionConfig& config) {
  return config.decay == Decay::kPerToken || config.decay == Decay::kPerChannel;
}

template <class Args>
StateTransitionProblem problem_of(const Args& args) {
  const TransitionConfig& config = config_of(args.config);
  StateTransitionProblem problem;
  problem.sequences = args.sequences;
  problem.num_heads = config.num_heads;
  problem.num_key_heads = config.num_key_heads;
  problem.key_dim = config.key_dim;
  problem.value_dim = config.value_dim;
  problem.decay = config.decay;
  problem.erase = config.erase;
  problem.head_decay = config.head_decay.data();
  problem.scale = config.scale;
  problem.chunk_size = args.chunk_size;
  problem.pool = args.pool;
  return problem;
}

/// Calls body(row) for every row of every sequence.
template <class Body>
void for_each_row(const kernels::Sequences& sequences, const Body& body) {
  for (int64_t i = 0; i < sequences.count; ++i) {
    for (int64_t t = 0; t < sequences.length[i]; ++t) body(sequences.begin[i] + t);
  }
}

/// Rows of the kernel from the operator's inputs; a is made in the arena, b is kappa itself.
template <class T>
StateTransitionRows<const T> rows_of(const OpArgs<T>& args, Arena& arena) {
  const TransitionConfig& config = config_of(args.config);
  StateTransitionRows<const T> rows;
  rows.q = args.inputs[0];
  rows.k = args.inputs[1];
  rows.v = args.inputs[2];
  size_t next = 3;
  if (has_gates(config)) rows.g = args.inputs[next++];
  if (config.has_beta) rows.beta = args.inputs[next++];
  if (config.erase != Erase::kRankOne) return rows;
  const Heads<const T> kappa = args.inputs[next];
  const Heads<const T> eta = args.inputs[next + 1];
  const int64_t width = config.keys_width();
  const int64_t count = spanned_rows(args.sequences) * width;
  const Heads<T> a{arena.alloc<T>(count), width, config.key_dim};
  for_each_row(args.sequences, [&](int64_t row) {
    for (int64_t h = 0; h < config.num_key_heads; ++h) {
      const T* __restrict from = kappa.at(row, h);
      const T* __restrict rate = eta.at(row, h);
      T* __restrict to = a.at(row, h);
      for (int64_t c = 0; c < config.key_dim; ++c) to[c] = -from[c] * rate[c];
    }
  });
  rows.a = a;
  rows.b = kappa;
  return rows;
}

}  // namespace

OpShape transition_shape(const MixerConfig& base) {
  using Range = OpInput::Range;
  const TransitionConfig& config = config_of(&base);
  const bool delta = config.erase == Erase::kDelta;
  OpShape shape;
  shape.inputs = {
      {"q", config.num_key_heads, config.key_dim, Range::kNormal},
      {"k", config.num_key_heads, config.key_dim, delta ? Range::kUnitNorm : Range::kNormal},
      {"v", config.num_heads, config.value_dim, Range::kNormal}};
  if (has_gates(config)) {
    const int64_t channels = config.decay == Decay::kPerChannel ? config.key_dim : 1;
    shape.inputs.push_back({"g", config.num_heads, channels, Range::kLogDecay});
  }
  if (config.has_beta) shape.inputs.push_back({"beta", config.num_heads, 1, Range::kUnitInterval});
  if (config.erase == Erase::kRankOne) {
    shape.inputs.push_back({"kappa", config.num_key_heads, config.key_dim, Range::kUnitNorm});
    shape.inputs.push_back({"eta", config.num_key_heads, config.key_dim, Range::kUnitInterval});
  }
  shape.out_heads = config.num_heads;
  shape.out_dim = config.value_dim;
  return shape;
}

std::vector<StateSpec> transition_states(const MixerConfig& base) {
  const TransitionConfig& config = config_of(&base);
  return {{"s", {config.num_heads, config.key_dim, config.value_dim}, 0.0f, false}};
}

void transition_recurrent(const OpArgs<double>& args) {
  Arena arena;
  kernels::reference::state_transition(problem_of(args), rows_of(args, arena), state_of(args.state),
                                       args.out);
}

void transition_chunk(const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  kernels::transition_forward(problem_of(args), rows_of(args, *args.arena), state_of(args.state),
                              args.out, *args.arena);
}

void transition_step(const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  kernels::transition_step(problem_of(args), rows_of(args, *args.arena), state_of(args.state),
                           args.out, *args.arena);
}

void transition_backward(const OpBackwardArgs& args) noexcept {
  const OpArgs<float>& forward = args.forward;
  const TransitionConfig& config = config_of(forward.config);
  Arena& arena = *forward.arena;
  ArenaScope scope(arena);
  const StateTransitionRows<const float> rows = rows_of(forward, arena);
  kernels::StateTransitionGradients gradients;
  gradients.rows.q = args.dinputs[0];
  gradients.rows.k = args.dinputs[1];
  gradients.rows.v = args.dinputs[2];
  size_t next = 3;
  if (has_gates(config)) gradients.rows.g = args.dinputs[next++];
  if (config.has_beta) gradients.rows.beta = args.dinputs[next++];
  gradients.dinitial = state_of(args.dinitial);
  const bool rank_one = config.erase == Erase::kRankOne;
  if (rank_one) {
    const int64_t width = config.keys_width();
    const int64_t count = spanned_rows(forward.sequences) * width;
    gradients.rows.a = {arena.alloc<float>(count), width, config.key_dim};
    gradients.rows.b = args.dinputs[next];
  }
  kernels::transition_backward(problem_of(forward), rows, state_of(forward.state), args.dout,
                               state_of(args.dfinal), gradients, arena);
  if (!rank_one) return;
  const Heads<const float> kappa = forward.inputs[next];
  const Heads<const float> eta = forward.inputs[next + 1];
  for_each_row(forward.sequences, [&](int64_t row) {
    for (int64_t h = 0; h < config.num_key_heads; ++h) {
      const float* da = gradients.rows.a.at(row, h);
      float* dkappa = args.dinputs[next].at(row, h);
      float* deta = args.dinputs[next + 1].at(row, h);
      for (int64_t c = 0; c < config.key_dim; ++c) {
        dkappa[c] -= da[c] * eta.at(row, h)[c];  // holds the gradient as b
        deta[c] = -da[c] * kappa.at(row, h)[c];
      }
    }
  });
}

void read_heads(JsonReader& reader, TransitionConfig& config) {
  config.num_heads = reader.integer("num_heads", 1, 4096);
  config.num_key_heads = config.num_heads;
  config.key_dim = reader.integer("key_dim", 1, 4096);
  config.value_dim = reader.integer("value_dim", 1, 4096, config.key_dim);
  config.scale = 1.0 / std::sqrt(static_cast<double>(config.key_dim));
}

double transition_flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const TransitionConfig& config = config_of(&base);
  const double state = static_cast<double>(config.num_heads) * static_cast<double>(config.key_dim) *
                       static_cast<double>(config.value_dim);
  const int extra = config.erase == Erase::kNone ? 0 : config.erase == Erase::kDelta ? 1 : 2;
  const double forward = (4 + 2 * extra) * state;
  if (pass == OpPass::kStep) return forward;
  return (pass == OpPass::kForward ? forward : (10 + 6 * extra) * state) *
         static_cast<double>(tokens);
}

}  // namespace tarn::mixers
