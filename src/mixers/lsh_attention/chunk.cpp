#include <algorithm>
#include <cmath>
#include <limits>

#include "mixers/common/stage_math.h"
#include "mixers/lsh_attention/sorted_tokens.h"

namespace tarn::mixers::lsh_attention {
namespace {

using kernels::Heads;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Adds one round's result of one head to the result so far: both weighted by their sums.
void merge(int64_t size, const float* __restrict round_out, float round_sum, float* __restrict out,
           float& log_sum) {
  if (round_sum == kMinusInfinity) return;
  const float maximum = std::max(log_sum, round_sum);
  const float old_weight = std::exp(log_sum - maximum);
  const float new_weight = std::exp(round_sum - maximum);
  const float total = old_weight + new_weight;
  const float old_part = old_weight / total;
  const float new_part = new_weight / total;
  for (int64_t c = 0; c < size; ++c) out[c] = old_part * out[c] + new_part * round_out[c];
  log_sum = maximum + std::log(total);
}

void attend_round(const OpArgs<float>& args, const Tokens* tokens, int64_t round, float* log_sum) {
  const Config& config = config_of(args.config);
  Arena& arena = *args.arena;
  ArenaScope scope(arena);
  const int64_t heads = config.num_heads;
  const int64_t dim = config.value_dim;
  const SortedRound sorted(args, tokens, round);
  Heads<float> out{arena.alloc<float>(sorted.query_rows() * heads * dim), heads * dim, dim};
  float* sums = arena.alloc<float>(sorted.query_rows() * heads);
  kernels::softmax_forward(sorted.problem(), sorted.sorted_queries(args.inputs[0], config.key_dim),
                           sorted.sorted_keys(), sorted.sorted_values(), out, sums, arena);
  parallel_for(args.pool, args.sequences.count * heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t i = item / heads;
      const int64_t head = item % heads;
      for (int64_t e = 0; e < args.sequences.length[i]; ++e) {
        const int64_t row = args.sequences.begin[i] + sorted.query_row(i, head, e);
        const int64_t from = sorted.query_begin(i) + e;
        merge(dim, out.at(from, head), sums[from * heads + head], args.out.at(row, head),
              log_sum[row * heads + head]);
      }
    }
  });
}

/// Calls body(sequence, row, head) for all rows of the call, heads of a sequence side by side.
template <class Body>
void for_each_row(const OpArgs<float>& args, int64_t heads, const Body& body) {
  parallel_for(args.pool, args.sequences.count * heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t i = item / heads;
      for (int64_t r = 0; r < args.sequences.length[i]; ++r) {
        body(i, args.sequences.begin[i] + r, item % heads);
      }
    }
  });
}

/// Rounds up to the end of the last sequence's rows.
int64_t rows_spanned(const kernels::Sequences& sequences) {
  int64_t rows = 0;
  for (int64_t i = 0; i < sequences.count; ++i) {
    rows = std::max(rows, sequences.begin[i] + sequences.length[i]);
  }
  return rows;
}

/// The states of sequences from `first` on.
template <class T>
struct LaterStates {
  LaterStates(const StateRefs<T>& all, int64_t first) : any(static_cast<bool>(all)) {
    for (size_t j = 0; any && j < 3; ++j) tensors[j] = all.tensors[j] + first;
  }
  StateRefs<T> refs() const { return {{tensors, any ? 3u : 0u}}; }

  bool any;
  T* const* tensors[3] = {};
};

/// Calls body(first, count) for groups of sequences of about 1,024 rows together: what a round sorts
/// is read again while it is near.
template <class Body>
void for_each_group(const kernels::Sequences& sequences, const Body& body) {
  constexpr int64_t kGroupRows = 1024;
  for (int64_t first = 0; first < sequences.count;) {
    int64_t count = 0;
    for (int64_t rows = 0; first + count < sequences.count; ++count) {
      rows += sequences.length[first + count];
      if (count > 0 && rows > kGroupRows) break;
    }
    body(first, count);
    first += count;
  }
}

OpArgs<float> group_args(const OpArgs<float>& all, int64_t first, int64_t count,
                         const LaterStates<float>& state) {
  OpArgs<float> args = all;
  args.sequences = {count, all.sequences.begin + first, all.sequences.length + first};
  if (all.positions != nullptr) args.positions = all.positions + first;
  args.state = state.refs();
  return args;
}

/// Gradients of all tokens so far, [tokens, H, K or V] per sequence.
struct TokenGradients {
  float* k = nullptr;
  float* v = nullptr;
};

void backward_round(const OpBackwardArgs& args, const Tokens* tokens, int64_t round,
                    const TokenGradients* gradients) {
  const OpArgs<float>& forward = args.forward;
  const Config& config = config_of(forward.config);
  Arena& arena = *forward.arena;
  ArenaScope scope(arena);
  const int64_t heads = config.num_heads;
  const int64_t key_dim = config.key_dim;
  const int64_t value_dim = config.value_dim;
  const SortedRound sorted(forward, tokens, round);
  const Heads<const float> sums = sorted.sorted_queries({forward.saved, heads, 1}, 1);
  const auto fresh = [&](int64_t rows, int64_t dim) {
    return Heads<float>{arena.alloc<float>(rows * heads * dim), heads * dim, dim};
  };
  const Heads<float> dq = fresh(sorted.query_rows(), key_dim);
  kernels::KeyRows<float> dk, dv;
  dk.shared = fresh(sorted.key_rows(), key_dim);
  dv.shared = fresh(sorted.key_rows(), value_dim);
  kernels::softmax_backward(sorted.problem(), sorted.sorted_queries(forward.inputs[0], key_dim),
                            sorted.sorted_keys(), sorted.sorted_values(),
                            sorted.sorted_queries(forward.out, value_dim), sums.data,
                            sorted.sorted_queries(args.dout, value_dim), dq, dk, dv, arena);
  const auto add = [](int64_t size, const float* __restrict from, float* __restrict to) {
    for (int64_t c = 0; c < size; ++c) to[c] += from[c];
  };
  parallel_for(forward.pool, forward.sequences.count * heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t i = item / heads;
      const int64_t h = item % heads;
      const Order& order = sorted.order(i, h);
      for (int64_t e = 0; e < order.queries; ++e) {
        const int64_t row = forward.sequences.begin[i] + sorted.query_row(i, h, e);
        add(key_dim, dq.at(sorted.query_begin(i) + e, h), args.dinputs[0].at(row, h));
      }
      for (int64_t e = 0; e < order.entries; ++e) {
        const int64_t from = sorted.key_begin(i) + e;
        const int64_t to = order.token[e] * heads + h;
        add(key_dim, dk.shared.at(from, h), gradients[i].k + to * key_dim);
        add(value_dim, dv.shared.at(from, h), gradients[i].v + to * value_dim);
      }
    }
  });
}

/// k = q / ‖q‖: what dk gives to dq.
void add_key_gradient(int64_t size, const float* __restrict q, const float* __restrict dk,
                      float* __restrict dq) {
  const float norm = key_norm(size, q);
  const float dot =
      sum_of<float>(size, [q, dk](int64_t c) { return q[c] * dk[c]; }) / (norm * norm);
  for (int64_t c = 0; c < size; ++c) dq[c] += (dk[c] - dot * q[c]) / norm;
}

/// Room for the gradients of every sequence's tokens, starting with what later calls give them.
TokenGradients* start_gradients(const OpBackwardArgs& args, const Tokens* tokens) {
  const Config& config = config_of(args.forward.config);
  Arena& arena = *args.forward.arena;
  const int64_t count = args.forward.sequences.count;
  TokenGradients* gradients = arena.alloc<TokenGradients>(count);
  const auto start = [&](int64_t i, size_t tensor, int64_t dim) {
    const int64_t size = tokens[i].count() * config.num_heads * dim;
    float* values = arena.alloc<float>(size);
    if (args.dfinal) {
      std::copy_n(args.dfinal.tensors[tensor][i], size, values);
    } else {
      std::fill_n(values, size, 0.0f);
    }
    return values;
  };
  for (int64_t i = 0; i < count; ++i) {
    gradients[i] = {start(i, 0, config.key_dim), start(i, 1, config.value_dim)};
  }
  return gradients;
}

void write_initial_gradients(const OpBackwardArgs& args, const Tokens* tokens,
                             const TokenGradients* gradients) {
  const Config& config = config_of(args.forward.config);
  for (int64_t i = 0; i < args.forward.sequences.count; ++i) {
    const int64_t entries = tokens[i].seen * config.num_heads;
    std::copy_n(gradients[i].k, entries * config.key_dim, args.dinitial.tensors[0][i]);
    std::copy_n(gradients[i].v, entries * config.value_dim, args.dinitial.tensors[1][i]);
    float* buckets = args.dinitial.tensors[2][i];
    std::fill_n(buckets, entries * config.rounds, 0.0f);
    if (args.dfinal) std::copy_n(args.dfinal.tensors[2][i], entries * config.rounds, buckets);
  }
}

void forward_group(const OpArgs<float>& args) {
  const Config& config = config_of(args.config);
  Arena& arena = *args.arena;
  ArenaScope scope(arena);
  const int64_t heads = config.num_heads;
  const Tokens* tokens = find_tokens(args, true);
  float* log_sum =
      args.saved != nullptr ? args.saved : arena.alloc<float>(rows_spanned(args.sequences) * heads);
  for_each_row(args, heads, [&](int64_t, int64_t row, int64_t h) {
    log_sum[row * heads + h] = kMinusInfinity;
    std::fill_n(args.out.at(row, h), config.value_dim, 0.0f);
  });
  for (int64_t round = 0; round < config.rounds; ++round) {
    attend_round(args, tokens, round, log_sum);
  }
  for_each_row(args, heads, [&](int64_t, int64_t row, int64_t h) {
    if (log_sum[row * heads + h] != kMinusInfinity) return;
    std::copy_n(args.inputs[1].at(row, h), config.value_dim, args.out.at(row, h));
  });
}

void backward_group(const OpBackwardArgs& args) {
  const OpArgs<float>& forward = args.forward;
  const Config& config = config_of(forward.config);
  ArenaScope scope(*forward.arena);
  const int64_t heads = config.num_heads;
  const Tokens* tokens = find_tokens(forward, false);
  const TokenGradients* gradients = start_gradients(args, tokens);
  for_each_row(forward, heads, [&](int64_t, int64_t row, int64_t h) {
    std::fill_n(args.dinputs[0].at(row, h), config.key_dim, 0.0f);
  });
  for (int64_t round = 0; round < config.rounds; ++round) {
    backward_round(args, tokens, round, gradients);
  }
  for_each_row(forward, heads, [&](int64_t i, int64_t row, int64_t h) {
    const int64_t token = tokens[i].seen + row - forward.sequences.begin[i];
    const int64_t entry = token * heads + h;
    add_key_gradient(config.key_dim, forward.inputs[0].at(row, h),
                     gradients[i].k + entry * config.key_dim, args.dinputs[0].at(row, h));
    float* dv = args.dinputs[1].at(row, h);
    std::copy_n(gradients[i].v + entry * config.value_dim, config.value_dim, dv);
    if (forward.saved[row * heads + h] != kMinusInfinity) return;
    for (int64_t c = 0; c < config.value_dim; ++c) dv[c] += args.dout.at(row, h)[c];
  });
  if (args.dinitial) write_initial_gradients(args, tokens, gradients);
}

}  // namespace

void chunk_forward(const OpArgs<float>& args) noexcept {
  for_each_group(args.sequences, [&](int64_t first, int64_t count) {
    const LaterStates<float> state(args.state, first);
    forward_group(group_args(args, first, count, state));
  });
}

void chunk_backward(const OpBackwardArgs& args) noexcept {
  for_each_group(args.forward.sequences, [&](int64_t first, int64_t count) {
    const LaterStates<float> state(args.forward.state, first);
    const LaterStates<const float> dfinal(args.dfinal, first);
    const LaterStates<float> dinitial(args.dinitial, first);
    OpBackwardArgs group = args;
    group.forward = group_args(args.forward, first, count, state);
    group.dfinal = dfinal.refs();
    group.dinitial = dinitial.refs();
    backward_group(group);
  });
}

}  // namespace tarn::mixers::lsh_attention
