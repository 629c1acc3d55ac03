#include "mixers/common/attention_call.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace tarn::mixers {
namespace {

using kernels::Heads;
using kernels::KeyRows;
using kernels::Sequences;
using kernels::SoftmaxProblem;

int64_t rows_spanned(const Sequences& sequences) {
  int64_t rows = 0;
  for (int64_t i = 0; i < sequences.count; ++i) {
    rows = std::max(rows, sequences.begin[i] + sequences.length[i]);
  }
  return rows;
}

template <class T>
void copy_rows(const Sequences& sequences, int64_t heads, int64_t dim, Heads<const T> from,
               Heads<T> to) {
  for (int64_t i = 0; i < sequences.count; ++i) {
    for (int64_t r = sequences.begin[i]; r < sequences.begin[i] + sequences.length[i]; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(from.at(r, h), dim, to.at(r, h));
      }
    }
  }
}

void rotate(const AttentionConfig& config, const Sequences& sequences, const int64_t* positions,
            int64_t heads, bool inverse, Heads<float> x) {
  kernels::rotary(sequences, positions, heads, config.rotary_dim, config.rotary_base, inverse, x);
}

void rotate(const AttentionConfig& config, const Sequences& sequences, const int64_t* positions,
            int64_t heads, bool inverse, Heads<double> x) {
  kernels::reference::rotary(sequences, positions, heads, config.rotary_dim, config.rotary_base,
                             inverse, x);
}

/// Positions to rotate by: the caller's, or zeros from `zeros` when it has none.
const int64_t* positions_or_zeros(const int64_t* positions, int64_t count, Arena& arena) {
  if (positions != nullptr) return positions;
  int64_t* zeros = arena.alloc<int64_t>(count);
  std::fill_n(zeros, count, 0);
  return zeros;
}

/// What the kernel reads: this call's rows, or the caches with this call's rows appended.
template <class T>
struct KeysAndValues {
  Sequences keys;
  KeyRows<const T> k;
  KeyRows<const T> v;
};

/// The caches of `state` as key and value rows of positions[i] + length[i] entries each.
template <class T, class Pointer>
KeysAndValues<T> cached_rows(const AttentionConfig& config, const Sequences& sequences,
                             const int64_t* positions, std::span<Pointer* const* const> tensors,
                             Arena& arena) {
  int64_t* lengths = arena.alloc<int64_t>(sequences.count);
  for (int64_t i = 0; i < sequences.count; ++i) {
    lengths[i] = position_of(positions, i) + sequences.length[i];
  }
  KeysAndValues<T> result;
  result.keys = {sequences.count, sequences.begin, lengths};
  result.k.data = tensors[0];
  result.k.row_stride = config.num_kv_heads * config.key_dim;
  result.k.head_stride = config.key_dim;
  result.v.data = tensors[1];
  result.v.row_stride = config.num_kv_heads * config.value_dim;
  result.v.head_stride = config.value_dim;
  return result;
}

template <class T>
void append_to_caches(const AttentionConfig& config, const OpArgs<T>& args, Heads<const T> k) {
  const int64_t k_width = config.num_kv_heads * config.key_dim;
  const int64_t v_width = config.num_kv_heads * config.value_dim;
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    for (int64_t r = 0; r < args.sequences.length[i]; ++r) {
      const int64_t entry = position_of(args.positions, i) + r;
      for (int64_t h = 0; h < config.num_kv_heads; ++h) {
        std::copy_n(k.at(args.sequences.begin[i] + r, h), config.key_dim,
                    args.state.tensors[0][i] + entry * k_width + h * config.key_dim);
        std::copy_n(args.inputs[2].at(args.sequences.begin[i] + r, h), config.value_dim,
                    args.state.tensors[1][i] + entry * v_width + h * config.value_dim);
      }
    }
  }
}

template <class T>
KeysAndValues<T> gather(const AttentionConfig& config, const OpArgs<T>& args, Arena& arena) {
  const Heads<const T> k =
      rotated(config, args.sequences, args.positions, config.num_kv_heads, args.inputs[1], arena);
  if (args.state) {
    append_to_caches(config, args, k);
    return cached_rows<T>(config, args.sequences, args.positions, args.state.tensors, arena);
  }
  KeysAndValues<T> result;
  result.keys = args.sequences;
  result.k.shared = k;
  result.v.shared = args.inputs[2];
  return result;
}

/// Calls `kernel` once, or once per pattern; all but the first add to what is there.
template <class Kernel>
void for_each_pattern(const VisibleKeys& visible, SoftmaxProblem& problem, const Kernel& kernel) {
  problem.causal = visible.causal;
  if (visible.patterns.empty()) kernel();
  for (const kernels::KeyPattern* pattern : visible.patterns) {
    problem.pattern = pattern;
    kernel();
    problem.accumulate = true;
  }
}

void backward_without_state(const AttentionConfig& config, const VisibleKeys& visible,
                            const OpBackwardArgs& args) {
  const OpArgs<float>& forward = args.forward;
  Arena& arena = *forward.arena;
  const int64_t* positions = positions_or_zeros(forward.positions, forward.sequences.count, arena);
  const Heads<const float> q =
      rotated(config, forward.sequences, positions, config.num_heads, forward.inputs[0], arena);
  const Heads<const float> k =
      rotated(config, forward.sequences, positions, config.num_kv_heads, forward.inputs[1], arena);
  const auto rows = [](auto heads) {
    KeyRows<typename std::remove_pointer<decltype(heads.data)>::type> result;
    result.shared = heads;
    return result;
  };
  SoftmaxProblem problem =
      attention_problem(config, forward.sequences, forward.sequences, forward.pool);
  for_each_pattern(visible, problem, [&] {
    kernels::softmax_backward(problem, q, rows(k), rows(forward.inputs[2]), forward.out,
                              forward.saved, args.dout, args.dinputs[0], rows(args.dinputs[1]),
                              rows(args.dinputs[2]), arena);
  });
  rotate_back(config, forward.sequences, positions, args.dinputs[0], args.dinputs[1], arena);
}

/// Splits the gradient of one whole cache into the part of earlier entries (dinitial) and the part
/// of this call's rows, after adding what arrives from later calls (dfinal).
void split_cache_gradient(const AttentionConfig& config, const OpBackwardArgs& args, size_t tensor,
                          int64_t dim, float* const* dcache) {
  const Sequences& sequences = args.forward.sequences;
  const int64_t width = config.num_kv_heads * dim;
  for (int64_t i = 0; i < sequences.count; ++i) {
    const int64_t position = position_of(args.forward.positions, i);
    const int64_t entries = position + sequences.length[i];
    if (args.dfinal) {
      const float* from_later = args.dfinal.tensors[tensor][i];
      for (int64_t j = 0; j < entries * width; ++j) dcache[i][j] += from_later[j];
    }
    if (args.dinitial) {
      std::copy_n(dcache[i], position * width, args.dinitial.tensors[tensor][i]);
    }
    for (int64_t r = 0; r < sequences.length[i]; ++r) {
      for (int64_t h = 0; h < config.num_kv_heads; ++h) {
        std::copy_n(dcache[i] + (position + r) * width + h * dim, dim,
                    args.dinputs[tensor + 1].at(sequences.begin[i] + r, h));
      }
    }
  }
}

void backward_with_state(const AttentionConfig& config, const VisibleKeys& visible,
                         const OpBackwardArgs& args) {
  const OpArgs<float>& forward = args.forward;
  Arena& arena = *forward.arena;
  const Sequences& sequences = forward.sequences;
  const int64_t* positions = positions_or_zeros(forward.positions, sequences.count, arena);
  const Heads<const float> q =
      rotated(config, sequences, positions, config.num_heads, forward.inputs[0], arena);
  const KeysAndValues<float> rows =
      cached_rows<float>(config, sequences, positions, forward.state.tensors, arena);

  KeyRows<float> dk;
  KeyRows<float> dv;
  float** dk_data = arena.alloc<float*>(sequences.count);
  float** dv_data = arena.alloc<float*>(sequences.count);
  dk.row_stride = rows.k.row_stride;
  dk.head_stride = rows.k.head_stride;
  dv.row_stride = rows.v.row_stride;
  dv.head_stride = rows.v.head_stride;
  for (int64_t i = 0; i < sequences.count; ++i) {
    dk_data[i] = arena.alloc<float>(rows.keys.length[i] * dk.row_stride);
    dv_data[i] = arena.alloc<float>(rows.keys.length[i] * dv.row_stride);
  }
  dk.data = dk_data;
  dv.data = dv_data;
  SoftmaxProblem problem = attention_problem(config, sequences, rows.keys, forward.pool);
  for_each_pattern(visible, problem, [&] {
    kernels::softmax_backward(problem, q, rows.k, rows.v, forward.out, forward.saved, args.dout,
                              args.dinputs[0], dk, dv, arena);
  });
  split_cache_gradient(config, args, 0, config.key_dim, dk_data);
  split_cache_gradient(config, args, 1, config.value_dim, dv_data);
  rotate_back(config, sequences, positions, args.dinputs[0], args.dinputs[1], arena);
}

}  // namespace

void read_attention_config(JsonReader& reader, int64_t model_dim, AttentionConfig& config,
                           bool rotary) {
  config.model_dim = model_dim;
  config.num_heads = reader.integer("num_heads", 1, 4096);
  config.num_kv_heads = reader.integer("num_kv_heads", 1, 4096, config.num_heads);
  config.key_dim = reader.integer("key_dim", 1, 4096);
  config.value_dim = reader.integer("value_dim", 1, 4096, config.key_dim);
  const double inverse_root =
      1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(1, config.key_dim)));
  config.scale = reader.number("scale", 0.0, 1e6, inverse_root);
  if (rotary) {
    config.rotary_dim = reader.integer("rotary_dim", 0, 4096, 0);
    config.rotary_base = reader.number("rotary_base", 1.0, 1e12, 10000.0);
  }
  if (config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads != 0) {
    reader.fail("num_kv_heads",
                "got " + std::to_string(config.num_kv_heads) +
                    ", wanted a divisor of num_heads = " + std::to_string(config.num_heads));
  }
  if (config.rotary_dim % 2 != 0 || config.rotary_dim > config.key_dim) {
    reader.fail("rotary_dim",
                "got " + std::to_string(config.rotary_dim) +
                    ", wanted an even number up to key_dim = " + std::to_string(config.key_dim));
  }
}

OpShape attention_shape(const AttentionConfig& config) {
  OpShape shape;
  shape.inputs = {{"q", config.num_heads, config.key_dim, OpInput::Range::kNormal},
                  {"k", config.num_kv_heads, config.key_dim, OpInput::Range::kNormal},
                  {"v", config.num_kv_heads, config.value_dim, OpInput::Range::kNormal}};
  shape.out_heads = config.num_heads;
  shape.out_dim = config.value_dim;
  shape.saved_per_row = config.num_heads;  // log of the sum of exponentials
  return shape;
}

std::vector<StateSpec> attention_cache(const AttentionConfig& config) {
  return {{"k", {config.num_kv_heads, config.key_dim}, 0.0f, true},
          {"v", {config.num_kv_heads, config.value_dim}, 0.0f, true}};
}

double attention_flops(const AttentionConfig& config, OpPass pass, double pairs) {
  const auto key_dim = static_cast<double>(config.key_dim);
  const auto value_dim = static_cast<double>(config.value_dim);
  const double per_pair =
      pass == OpPass::kBackward ? 6 * key_dim + 4 * value_dim : 2 * (key_dim + value_dim);
  return static_cast<double>(config.num_heads) * per_pair * pairs;
}

StateTraffic attention_traffic(const AttentionConfig& config, double keys) {
  const auto entry = static_cast<double>(config.num_kv_heads * (config.key_dim + config.value_dim));
  return {entry * (keys - 1), entry};
}

SoftmaxProblem attention_problem(const AttentionConfig& config, const Sequences& queries,
                                 const Sequences& keys, ThreadPool* pool) {
  SoftmaxProblem problem;
  problem.queries = queries;
  problem.keys = keys;
  problem.num_heads = config.num_heads;
  problem.num_kv_heads = config.num_kv_heads;
  problem.key_dim = config.key_dim;
  problem.value_dim = config.value_dim;
  problem.scale = config.scale;
  problem.pool = pool;
  return problem;
}

template <class T>
Heads<const T> rotated(const AttentionConfig& config, const Sequences& sequences,
                       const int64_t* positions, int64_t heads, Heads<const T> x, Arena& arena) {
  if (config.rotary_dim == 0) return x;
  const int64_t width = heads * config.key_dim;
  Heads<T> copy{arena.alloc<T>(rows_spanned(sequences) * width), width, config.key_dim};
  copy_rows(sequences, heads, config.key_dim, x, copy);
  rotate(config, sequences, positions_or_zeros(positions, sequences.count, arena), heads, false,
         copy);
  return copy;
}

template Heads<const float> rotated(const AttentionConfig&, const Sequences&, const int64_t*,
                                    int64_t, Heads<const float>, Arena&);
template Heads<const double> rotated(const AttentionConfig&, const Sequences&, const int64_t*,
                                     int64_t, Heads<const double>, Arena&);

void rotate_back(const AttentionConfig& config, const Sequences& sequences,
                 const int64_t* positions, Heads<float> dq, Heads<float> dk, Arena& arena) {
  if (config.rotary_dim == 0) return;
  positions = positions_or_zeros(positions, sequences.count, arena);
  rotate(config, sequences, positions, config.num_heads, true, dq);
  rotate(config, sequences, positions, config.num_kv_heads, true, dk);
}

void cached_attention(const AttentionConfig& config, const VisibleKeys& visible,
                      const OpArgs<float>& args) noexcept {
  ArenaScope scope(*args.arena);
  const Heads<const float> q = rotated(config, args.sequences, args.positions, config.num_heads,
                                       args.inputs[0], *args.arena);
  const KeysAndValues<float> rows = gather(config, args, *args.arena);
  float* log_sum = args.saved;
  if (log_sum == nullptr && visible.patterns.size() > 1) {
    log_sum = args.arena->alloc<float>(rows_spanned(args.sequences) * config.num_heads);
  }
  SoftmaxProblem problem = attention_problem(config, args.sequences, rows.keys, args.pool);
  for_each_pattern(visible, problem, [&] {
    kernels::softmax_forward(problem, q, rows.k, rows.v, args.out, log_sum, *args.arena);
  });
}

void cached_attention_backward(const AttentionConfig& config, const VisibleKeys& visible,
                               const OpBackwardArgs& args) noexcept {
  ArenaScope scope(*args.forward.arena);
  if (args.forward.state) {
    backward_with_state(config, visible, args);
  } else {
    backward_without_state(config, visible, args);
  }
}

void cached_attention_reference(const AttentionConfig& config, const Sees& sees,
                                const OpArgs<double>& args) {
  Arena arena;
  const Heads<const double> q =
      rotated(config, args.sequences, args.positions, config.num_heads, args.inputs[0], arena);
  const KeysAndValues<double> rows = gather(config, args, arena);
  std::vector<const double*> keys;
  std::vector<const double*> values;
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    const int64_t tokens = rows.keys.length[i];
    const int64_t earlier = tokens - args.sequences.length[i];
    for (int64_t t = earlier; t < tokens; ++t) {
      const int64_t row = args.sequences.begin[i] + t - earlier;
      for (int64_t head = 0; head < config.num_heads; ++head) {
        const int64_t kv_head = head / (config.num_heads / config.num_kv_heads);
        keys.clear();
        values.clear();
        for (int64_t j = 0; j < tokens; ++j) {
          if (!sees(head, t, j, tokens)) continue;
          keys.push_back(rows.k.at(rows.keys, i, j, kv_head));
          values.push_back(rows.v.at(rows.keys, i, j, kv_head));
        }
        attend_reference(config, q.at(row, head), keys, values, args.out.at(row, head));
      }
    }
  }
}

void attend_reference(const AttentionConfig& config, const double* q,
                      const std::vector<const double*>& keys,
                      const std::vector<const double*>& values, double* out) {
  std::fill_n(out, config.value_dim, 0.0);
  std::vector<double> weights;
  double maximum = -std::numeric_limits<double>::infinity();
  for (const double* key : keys) {
    double dot = 0.0;
    for (int64_t c = 0; c < config.key_dim; ++c) dot += q[c] * key[c];
    weights.push_back(config.scale * dot);
    maximum = std::max(maximum, weights.back());
  }
  double sum = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - maximum);
  for (size_t j = 0; j < values.size(); ++j) {
    for (int64_t c = 0; c < config.value_dim; ++c) out[c] += weights[j] / sum * values[j][c];
  }
}

}  // namespace tarn::mixers
