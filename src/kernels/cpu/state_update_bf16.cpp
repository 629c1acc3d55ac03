#include "kernels/cpu/state_update_bf16.h"

#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/state_update.h"
#include "kernels/targets.h"

namespace tarn::kernels {
namespace {

/// One call in blocks of bf16 products.
struct BlockCall {
  const StateUpdateProblem& problem;
  Heads<const uint16_t> q, k, v;
  StatePointers<float> state;
  Heads<uint16_t> out;
  float* denominator;
  const Bf16BlockKernels& kernels;
  int64_t group;  ///< most heads that take turns
  int64_t scratch_size = 0;
  float* scratch = nullptr;

  void items(int64_t begin, int64_t end, float* memory) const;
};

struct BlockScratch {
  BlockScratch(const BlockCall& call, float* memory) : space(memory) {
    const int64_t features = call.problem.feature_map.feature_dim;
    const int64_t values = call.problem.value_dim;
    x = space.take(kBf16Tokens * call.problem.key_dim);
    phi = space.take(kBf16Tokens * features);
    phi_q = space.take(kBf16Tokens * features / 2);
    phi_k = space.take(kBf16Tokens * features / 2);
    operands = space.take(bf16_scratch_size(features, values) / 2);
    s_pairs = space.take(call.group * features / 2 * values);
    s = space.take(call.group * features * values);
    z = space.take(call.group * features);
  }
  Scratch space;
  float* x;         // [block, K]
  float* phi;       // [block, F]
  float* phi_q;     // [block, F] in bf16
  float* phi_k;     // [block, F] in bf16
  float* operands;  // of Bf16Block
  float* s_pairs;   // [group, F/2, V] words
  float* s;         // [group, F, V], when the caller keeps no state
  float* z;         // [group, F]
};

constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(uint16_t));

/// The cache lines of some rows of one head, as many as there is room for.
struct LineList {
  static constexpr int64_t kMost = 512;
  void add(const Heads<const uint16_t>& from, int64_t row, int64_t rows, int64_t head,
           int64_t width) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t c = 0; c < width && count < kMost; c += kLine) {
        at[count++] = from.at(row + i, head) + c;
      }
    }
  }
  const void* at[kMost];
  int64_t count = 0;
};

/// φ of `rows` rows, in bf16.
void map_rows(const BlockCall& call, const BlockScratch& scratch, const Heads<const uint16_t>& from,
              int64_t row, int64_t rows, int64_t head, uint16_t* phi) {
  const FeatureMap& map = call.problem.feature_map;
  if (map.forward_bf16 != nullptr) {
    map.forward_bf16(map, rows, from.at(row, head), from.row_stride, phi);
    return;
  }
  call.kernels.widen(rows, map.input_dim, from.at(row, head), from.row_stride, scratch.x);
  map.forward(map, rows, scratch.x, map.input_dim, scratch.phi);
  call.kernels.round(rows, map.feature_dim, scratch.phi, phi);
}

void BlockCall::items(int64_t begin, int64_t end, float* memory) const {
  const int64_t F = problem.feature_map.feature_dim;
  const int64_t V = problem.value_dim;
  const BlockScratch at(*this, memory);
  Bf16Block block{.features = F,
                  .values = V,
                  .phi_q = reinterpret_cast<uint16_t*>(at.phi_q),
                  .phi_k = reinterpret_cast<uint16_t*>(at.phi_k),
                  .v_stride = v.row_stride,
                  .eps = problem.eps,
                  .out_stride = out.row_stride,
                  .denominator_stride = problem.num_heads,
                  .scratch = reinterpret_cast<uint16_t*>(at.operands)};
  while (begin < end) {
    const HeadGroup turn = HeadGroup::at(problem, begin, end, group);
    begin += turn.count;
    float* s = states_or_zeros(state.s, turn, F * V, at.s);
    float* z = states_or_zeros(state.z, turn, F, at.z);
    const auto select = [&](int64_t i) {
      block.s = s + i * F * V;
      block.s_pairs = reinterpret_cast<uint32_t*>(at.s_pairs) + i * F / 2 * V;
      block.z = problem.normalise ? z + i * F : nullptr;
    };
    for (int64_t i = 0; i < turn.count; ++i) {
      select(i);
      kernels.round_state(block);
    }
    const int64_t first = problem.sequences.begin[turn.sequence];
    const int64_t last = first + problem.sequences.length[turn.sequence];
    for (int64_t row = first; row < last; row += kBf16Tokens) {
      block.tokens = std::min(kBf16Tokens, last - row);
      for (int64_t i = 0; i < turn.count; ++i) {
        const int64_t head = turn.first + i;
        select(i);
        map_rows(*this, at, q, row, block.tokens, head, block.phi_q);
        map_rows(*this, at, k, row, block.tokens, head, block.phi_k);
        block.v = v.at(row, head);
        block.out = out.at(row, head);
        block.denominator =
            denominator == nullptr ? nullptr : denominator + row * problem.num_heads + head;
        const bool same_rows = i + 1 < turn.count;
        const int64_t next = same_rows ? row : row + kBf16Tokens;
        const int64_t next_head = same_rows ? head + 1 : turn.first;
        const int64_t rows = std::min(kBf16Tokens, last - next);
        for (int64_t t = 0; t < block.tokens; ++t) {
          for (int64_t c = 0; c < V; c += kLine) __builtin_prefetch(out.at(row + t, head) + c, 1);
        }
        LineList ahead;
        ahead.add(q, next, rows, next_head, problem.key_dim);
        ahead.add(k, next, rows, next_head, problem.key_dim);
        ahead.add(v, next, rows, next_head, V);
        block.ahead = ahead.at;
        block.ahead_count = ahead.count;
        kernels.run(block);
      }
    }
  }
}

/// [rows, heads, width] dense in f32 of all heads of some rows.
Heads<const float> widen_rows(const Heads<const uint16_t>& from, int64_t row, int64_t rows,
                              int64_t heads, int64_t width, float* to) {
  for (int64_t i = 0; i < rows * heads; ++i) {
    const uint16_t* x = from.at(row + i / heads, i % heads);
    for (int64_t c = 0; c < width; ++c) to[i * width + c] = bf16_to_f32(x[c]);
  }
  return {to, heads * width, width};
}

/// Any CPU, any shape: causal_forward on some widened rows after the other.
void forward_widened(const StateUpdateProblem& problem, Heads<const uint16_t> q,
                     Heads<const uint16_t> k, Heads<const uint16_t> v, StatePointers<float> state,
                     Heads<uint16_t> out, float* denominator, Arena& arena) {
  constexpr int64_t kRows = 256;
  const int64_t H = problem.num_heads;
  const int64_t K = problem.key_dim;
  const int64_t V = problem.value_dim;
  const int64_t F = problem.feature_map.feature_dim;
  ArenaScope scope(arena);
  float* wide = arena.alloc<float>(kRows * H * (2 * K + 2 * V));
  float* s = arena.alloc<float>(H * F * V);
  float* z = arena.alloc<float>(H * F);
  for (int64_t sequence = 0; sequence < problem.sequences.count; ++sequence) {
    if (state.s != nullptr) s = state.s[sequence];
    if (state.z != nullptr) z = state.z[sequence];
    if (state.s == nullptr) std::fill_n(s, H * F * V, 0.0f);
    if (state.z == nullptr) std::fill_n(z, H * F, 0.0f);
    const int64_t first = problem.sequences.begin[sequence];
    const int64_t last = first + problem.sequences.length[sequence];
    for (int64_t row = first; row < last; row += kRows) {
      const int64_t rows = std::min(kRows, last - row);
      const int64_t begin = 0;
      StateUpdateProblem part = problem;
      part.sequences = {1, &begin, &rows};
      float* at = wide;
      const auto wide_q = widen_rows(q, row, rows, H, K, at);
      const auto wide_k = widen_rows(k, row, rows, H, K, at += rows * H * K);
      const auto wide_v = widen_rows(v, row, rows, H, V, at += rows * H * K);
      float* result = at + rows * H * V;
      causal_forward(part, wide_q, wide_k, wide_v, {&s, &z}, {result, H * V, V},
                     denominator == nullptr ? nullptr : denominator + row * H, arena);
      for (int64_t i = 0; i < rows * H; ++i) {
        uint16_t* to = out.at(row + i / H, i % H);
        for (int64_t c = 0; c < V; ++c) to[c] = f32_to_bf16(result[i * V + c]);
      }
    }
  }
}

}  // namespace

void causal_forward_bf16(const StateUpdateProblem& problem, Heads<const uint16_t> q,
                         Heads<const uint16_t> k, Heads<const uint16_t> v,
                         StatePointers<float> state, Heads<uint16_t> out, float* denominator,
                         Arena& arena) noexcept {
  const int64_t F = problem.feature_map.feature_dim;
  const int64_t V = problem.value_dim;
  const Bf16BlockKernels* kernels = dispatch_takes_avx512() ? avx512_bf16_block_kernels() : nullptr;
  if (kernels == nullptr || (problem.key_dim | F | V) % 32 != 0) {
    forward_widened(problem, q, k, v, state, out, denominator, arena);
    return;
  }
  BlockCall call{
      problem, q, k, v, state, out, denominator, *kernels, heads_in_turn(problem, 2 * F * V)};
  call.scratch_size = BlockScratch(call, nullptr).space.used();
  for_each_head(problem, problem.sequences.count * problem.num_heads, call, arena);
}

}  // namespace tarn::kernels
