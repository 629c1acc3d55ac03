#include "mixers/common/slot_attention.h"

#include <algorithm>

namespace tarn::mixers {
namespace {

using kernels::Heads;
using kernels::KeyRows;
using kernels::QueryBlock;
using kernels::SoftmaxProblem;

/// The layout's view of every sequence of a call, for the kernel.
struct SlotPattern final : kernels::KeyPattern {
  const SlotLayout* layout = nullptr;
  const int64_t* positions = nullptr;
  bool single_reads_slots = false;  ///< sequences of one token: their slots instead of rows

  int64_t num_blocks(const SoftmaxProblem& problem, int64_t sequence) const final {
    const int64_t block = kernels::kMaxQueryBlock;
    return (problem.queries.length[sequence] + block - 1) / block;
  }
  void describe(const SoftmaxProblem& problem, int64_t sequence, int64_t, int64_t index,
                QueryBlock& block) const final {
    const int64_t tokens = problem.queries.length[sequence];
    const int64_t seen = position_of(positions, sequence);
    block.first = index * kernels::kMaxQueryBlock;
    block.step = 1;
    block.count = std::min(kernels::kMaxQueryBlock, tokens - block.first);
    if (single_reads_slots && tokens == 1) {
      layout->see_slots(seen, block);
    } else {
      layout->see_rows({seen, tokens}, block);
    }
  }
};

/// The rows of one sequence in one call.
struct Plan {
  SlotLayout::Call call;
  bool in_slots = false;  ///< one token: the rows are the slots
  int64_t rows = 0;
  int32_t* source = nullptr;
  int32_t* held = nullptr;
  SlotLayout::Rows tensors[2];  ///< keys and values
};

/// Key and value widths of the state tensors.
int64_t dim_of(const AttentionConfig& config, int tensor) {
  return tensor == 0 ? config.key_dim : config.value_dim;
}

Plan* make_plans(const AttentionConfig& config, const SlotLayout& layout, const OpArgs<float>& args,
                 bool single_reads_slots) {
  Arena& arena = *args.arena;
  Plan* plans = arena.alloc<Plan>(args.sequences.count);
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    Plan& plan = plans[i] = Plan();
    plan.call = {position_of(args.positions, i), args.sequences.length[i]};
    plan.in_slots = single_reads_slots && plan.call.tokens == 1;
    plan.rows = layout.num_slots();
    if (!plan.in_slots) {
      plan.source = arena.alloc<int32_t>(layout.max_rows(plan.call));
      plan.held = arena.alloc<int32_t>(layout.num_slots());
      plan.rows = layout.plan(plan.call, plan.source, plan.held);
    }
    for (int tensor = 0; tensor < 2; ++tensor) {
      const int64_t dim = dim_of(config, tensor);
      plan.tensors[tensor] = {tensor == 0, config.num_kv_heads, dim, nullptr};
      plan.tensors[tensor].data = plan.in_slots
                                      ? args.state.tensors[static_cast<size_t>(tensor)][i]
                                      : arena.alloc<float>(plan.rows * config.num_kv_heads * dim);
    }
  }
  return plans;
}

void copy_token(const Heads<const float>& tokens, int64_t row, const SlotLayout::Rows& shape,
                float* to) {
  for (int64_t h = 0; h < shape.heads; ++h) {
    std::copy_n(tokens.at(row, h), shape.dim, to + h * shape.dim);
  }
}

/// The rows of a plan from slots and tokens; `begin`: row of the call's first token.
void fill_rows(const SlotLayout& layout, const Plan& plan, SlotLayout::Params params,
               const float* slots, const Heads<const float>& tokens, int64_t begin,
               SlotLayout::Rows& rows) {
  const int64_t width = rows.heads * rows.dim;
  for (int64_t j = 0; j < plan.rows; ++j) {
    const int32_t source = plan.source[j];
    if (source == SlotLayout::kComputed) continue;
    if (source >= 0) {
      copy_token(tokens, begin + source, rows, rows.at(j));
    } else {
      std::copy_n(slots + static_cast<int64_t>(~source) * width, width, rows.at(j));
    }
  }
  layout.compute(plan.call, params, rows);
}

/// Rows (or slots) of one sequence ready to be read, and the state after the call.
void prepare_sequence(const SlotLayout& layout, const OpArgs<float>& args,
                      const Heads<const float>* tokens, int64_t sequence, Plan& plan) {
  const int64_t begin = args.sequences.begin[sequence];
  for (int tensor = 0; tensor < 2; ++tensor) {
    SlotLayout::Rows& rows = plan.tensors[tensor];
    const int64_t width = rows.heads * rows.dim;
    float* slots = args.state ? args.state.tensors[static_cast<size_t>(tensor)][sequence] : nullptr;
    if (plan.in_slots) {
      copy_token(tokens[tensor], begin, rows, rows.at(layout.slot_of(plan.call.seen)));
      const int64_t second = layout.second_slot_of(plan.call.seen);
      if (second >= 0) copy_token(tokens[tensor], begin, rows, rows.at(second));
      layout.compute_slots(plan.call.seen, args.params, rows);
      continue;
    }
    fill_rows(layout, plan, args.params, slots, tokens[tensor], begin, rows);
    for (int64_t s = 0; slots != nullptr && s < layout.num_slots(); ++s) {
      if (plan.held[s] >= 0) std::copy_n(rows.at(plan.held[s]), width, slots + s * width);
    }
  }
}

/// Tensor `tensor` of all plans as the kernel reads it.
template <class T>
KeyRows<T> key_rows(const Plan* plans, int64_t count, int tensor, Arena& arena) {
  T** data = arena.alloc<T*>(count);
  KeyRows<T> result;
  for (int64_t i = 0; i < count; ++i) {
    const SlotLayout::Rows& rows = plans[i].tensors[tensor];
    data[i] = rows.data;
    result.row_stride = rows.heads * rows.dim;
    result.head_stride = rows.dim;
  }
  result.data = data;
  return result;
}

kernels::Sequences row_lengths(const Plan* plans, const kernels::Sequences& sequences,
                               Arena& arena) {
  int64_t* lengths = arena.alloc<int64_t>(sequences.count);
  for (int64_t i = 0; i < sequences.count; ++i) lengths[i] = plans[i].rows;
  return {sequences.count, sequences.begin, lengths};
}

/// From the gradient of a sequence's rows (and of the slots after the call) to that of its tokens
/// and of the slots before the call.
void split_gradient(const SlotLayout& layout, const OpBackwardArgs& args, int64_t sequence,
                    int tensor, Plan& plan, SlotLayout::Rows& drows) {
  const int64_t width = drows.heads * drows.dim;
  const auto index = static_cast<size_t>(tensor);
  const float* dfinal = args.dfinal ? args.dfinal.tensors[index][sequence] : nullptr;
  float* dinitial = args.dinitial ? args.dinitial.tensors[index][sequence] : nullptr;
  const int64_t slots = layout.num_slots();
  if (dinitial != nullptr) std::fill_n(dinitial, slots * width, 0.0f);
  for (int64_t s = 0; dfinal != nullptr && s < slots; ++s) {
    float* to = plan.held[s] >= 0     ? drows.at(plan.held[s])
                : dinitial == nullptr ? nullptr
                                      : dinitial + s * width;
    for (int64_t c = 0; to != nullptr && c < width; ++c) to[c] += dfinal[s * width + c];
  }
  layout.compute_gradient(plan.call, args.forward.params, plan.tensors[tensor], drows,
                          args.dparams);
  const int64_t begin = args.forward.sequences.begin[sequence];
  const Heads<float>& dtokens = args.dinputs[index + 1];
  for (int64_t r = 0; r < plan.call.tokens; ++r) {
    for (int64_t h = 0; h < drows.heads; ++h)
      std::fill_n(dtokens.at(begin + r, h), drows.dim, 0.0f);
  }
  for (int64_t j = 0; j < plan.rows; ++j) {
    const int32_t source = plan.source[j];
    if (source == SlotLayout::kComputed || (source < 0 && dinitial == nullptr)) continue;
    for (int64_t h = 0; h < drows.heads; ++h) {
      const float* from = drows.at(j) + h * drows.dim;
      float* to = source >= 0 ? dtokens.at(begin + source, h)
                              : dinitial + static_cast<int64_t>(~source) * width + h * drows.dim;
      for (int64_t c = 0; c < drows.dim; ++c) to[c] += from[c];
    }
  }
}

}  // namespace

std::vector<StateSpec> slot_specs(const AttentionConfig& config, int64_t slots) {
  return {{"k", {slots, config.num_kv_heads, config.key_dim}, 0.0f, false},
          {"v", {slots, config.num_kv_heads, config.value_dim}, 0.0f, false}};
}

void slot_attention(const AttentionConfig& config, const SlotLayout& layout,
                    const OpArgs<float>& args) noexcept {
  Arena& arena = *args.arena;
  ArenaScope scope(arena);
  const int64_t count = args.sequences.count;
  const Heads<const float> q =
      rotated(config, args.sequences, args.positions, config.num_heads, args.inputs[0], arena);
  const Heads<const float> tokens[2] = {
      rotated(config, args.sequences, args.positions, config.num_kv_heads, args.inputs[1], arena),
      args.inputs[2]};
  SlotPattern pattern;
  pattern.layout = &layout;
  pattern.positions = args.positions;
  pattern.single_reads_slots = static_cast<bool>(args.state);
  Plan* plans = make_plans(config, layout, args, pattern.single_reads_slots);
  parallel_for(args.pool, count, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) prepare_sequence(layout, args, tokens, i, plans[i]);
  });
  SoftmaxProblem problem = attention_problem(config, args.sequences,
                                             row_lengths(plans, args.sequences, arena), args.pool);
  problem.pattern = &pattern;
  kernels::softmax_forward(problem, q, key_rows<const float>(plans, count, 0, arena),
                           key_rows<const float>(plans, count, 1, arena), args.out, args.saved,
                           arena);
}

void slot_attention_backward(const AttentionConfig& config, const SlotLayout& layout,
                             const OpBackwardArgs& args) noexcept {
  const OpArgs<float>& forward = args.forward;
  Arena& arena = *forward.arena;
  ArenaScope scope(arena);
  const int64_t count = forward.sequences.count;
  const Heads<const float> q = rotated(config, forward.sequences, forward.positions,
                                       config.num_heads, forward.inputs[0], arena);
  const Heads<const float> tokens[2] = {rotated(config, forward.sequences, forward.positions,
                                                config.num_kv_heads, forward.inputs[1], arena),
                                        forward.inputs[2]};
  SlotPattern pattern;
  pattern.layout = &layout;
  pattern.positions = forward.positions;
  Plan* plans = make_plans(config, layout, forward, false);
  Plan* gradients = arena.alloc<Plan>(count);
  for (int64_t i = 0; i < count; ++i) {
    gradients[i] = plans[i];
    for (int tensor = 0; tensor < 2; ++tensor) {
      SlotLayout::Rows& rows = gradients[i].tensors[tensor];
      rows.data = arena.alloc<float>(plans[i].rows * rows.heads * rows.dim);
      const float* slots =
          forward.state ? forward.state.tensors[static_cast<size_t>(tensor)][i] : nullptr;
      fill_rows(layout, plans[i], forward.params, slots, tokens[tensor], forward.sequences.begin[i],
                plans[i].tensors[tensor]);
    }
  }
  SoftmaxProblem problem = attention_problem(
      config, forward.sequences, row_lengths(plans, forward.sequences, arena), forward.pool);
  problem.pattern = &pattern;
  kernels::softmax_backward(problem, q, key_rows<const float>(plans, count, 0, arena),
                            key_rows<const float>(plans, count, 1, arena), forward.out,
                            forward.saved, args.dout, args.dinputs[0],
                            key_rows<float>(gradients, count, 0, arena),
                            key_rows<float>(gradients, count, 1, arena), arena);
  for (int64_t i = 0; i < count; ++i) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      split_gradient(layout, args, i, tensor, plans[i], gradients[i].tensors[tensor]);
    }
  }
  rotate_back(config, forward.sequences, forward.positions, args.dinputs[0], args.dinputs[1],
              arena);
}

void see_window(int64_t first, int64_t query, int64_t window, int64_t queries,
                kernels::KeyRun& run) {
  for (int64_t r = 0; r < queries; ++r) {
    run.from[r] = static_cast<int32_t>(std::max<int64_t>(0, query + r + 1 - window - first));
    run.to[r] = static_cast<int32_t>(std::min(run.count, query + r + 1 - first));
  }
}

}  // namespace tarn::mixers
