#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/state_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/state_update_backward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/small_gemm-inl.h"
#include "kernels/cpu/state_scan-inl.h"
#include "kernels/cpu/state_update_rows-inl.h"

// Gradient of o = num / den, with num_t = S_tᵀφ(q_t) and den_t = φ(q_t)·z_t + ε:
//   dnum = dout / den,  dden = −(dout·out) / den
//   dφ(q_t) = S_t dnum_t + z_t dden_t                      S, z: sums over tokens ≤ t
//   dφ(k_t) = R_t v_t + w_t,  dv_t = R_tᵀ φ(k_t)           R, w: sums over tokens ≥ t of
//                                                          φ(q) ⊗ dnum and φ(q)·dden
// Each line is the recurrence of state_scan-inl.h in one direction of time. Writing [v | 1] and
// [dnum | dden] for the rows with one more column, z is the last row of Sᵀ and w that of Rᵀ.

#ifndef TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_ONCE_
#define TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_ONCE_
namespace tarn::kernels {
namespace {

/// One backward call: what all its (sequence, head) pairs share.
struct BackwardCall {
  const StateUpdateProblem& problem;
  Heads<const float> q, k, v, out;
  const float* denominator;
  StatePointers<const float> initial;
  Heads<const float> dout;
  StatePointers<const float> dfinal;
  const StateUpdateGradients& gradients;
  int64_t chunk;
  int64_t group;  ///< most heads that take turns
  void (*run)(const BackwardCall& call, int64_t begin, int64_t end, float* memory);
  int64_t scratch_size = 0;
  float* scratch = nullptr;

  void items(int64_t begin, int64_t end, float* memory) const { run(*this, begin, end, memory); }
  int64_t extended_dim() const { return problem.value_dim + (problem.normalise ? 1 : 0); }
  /// Row stride of [v | 1] and [dnum | dden]: whole cache lines, so that vectors do not straddle.
  int64_t extended_stride() const {
    constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
    return (extended_dim() + kLine - 1) / kLine * kLine;
  }
};

struct BackwardScratch {
  BackwardScratch(const BackwardCall& call, float* memory)
      : space(memory),
        inputs{call.q, call.k, call.v, call.dout, call.out},
        widths{call.problem.key_dim, call.problem.key_dim, call.problem.value_dim,
               call.problem.value_dim, call.problem.value_dim} {
    const int64_t features = call.problem.feature_map.feature_dim;
    const int64_t extended = call.extended_dim();
    const int64_t stride = call.extended_stride();
    phi_q = space.take(call.chunk * features);
    phi_k = space.take(call.chunk * features);
    dphi = space.take(call.chunk * features);
    value = space.take(call.chunk * stride);
    dnum = space.take(call.chunk * stride);
    r = space.take(call.group * features * call.problem.value_dim);
    prefix = space.take(call.group * extended * features);
    suffix = space.take(call.group * extended * features);
  }
  Scratch space;
  Heads<const float> inputs[5];
  int64_t widths[5];
  float* phi_q;   // [chunk, F]
  float* phi_k;   // [chunk, F]
  float* dphi;    // [chunk, F]
  float* value;   // [chunk, V + 1]: [v | 1]
  float* dnum;    // [chunk, V + 1]: [dnum | dden]
  float* r;       // [group, F, V]: R
  float* prefix;  // [group, V + 1, F]: Sᵀ over z
  float* suffix;  // [group, V + 1, F]: Rᵀ over w
};

}  // namespace
}  // namespace tarn::kernels
#endif  // TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_ONCE_

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// One (sequence, head) of a backward call.
struct BackwardHead {
  const BackwardCall& call;
  const BackwardScratch& scratch;
  int64_t sequence;
  int64_t head;
  int64_t slot;  ///< of its states in the scratch

  float* r() const { return scratch.r + slot * features() * value_dim(); }
  float* prefix() const { return scratch.prefix + slot * extended() * features(); }
  float* suffix() const { return scratch.suffix + slot * extended() * features(); }
  const FeatureMap& map() const { return call.problem.feature_map; }
  int64_t features() const { return call.problem.feature_map.feature_dim; }
  int64_t value_dim() const { return call.problem.value_dim; }
  int64_t extended() const { return call.extended_dim(); }
  int64_t stride() const { return call.extended_stride(); }
  int64_t first_row() const { return call.problem.sequences.begin[sequence]; }
  int64_t length() const { return call.problem.sequences.length[sequence]; }
  int64_t num_chunks() const { return (length() + call.chunk - 1) / call.chunk; }
  int64_t chunk_row(int64_t chunk) const { return first_row() + chunk * call.chunk; }
  int64_t chunk_length(int64_t chunk) const {
    return std::min(call.chunk, length() - chunk * call.chunk);
  }

  HWY_INLINE void map_queries(int64_t row, int64_t tokens) const {
    map().forward(map(), tokens, call.q.at(row, head), call.q.row_stride, scratch.phi_q);
  }
  HWY_INLINE void map_keys(int64_t row, int64_t tokens) const {
    map().forward(map(), tokens, call.k.at(row, head), call.k.row_stride, scratch.phi_k);
  }
  HWY_INLINE void extend_values(int64_t row, int64_t tokens) const {
    for (int64_t t = 0; t < tokens; ++t) {
      float* to = scratch.value + t * stride();
      copy(call.v.at(row + t, head), to, value_dim());
      if (call.problem.normalise) to[value_dim()] = 1.0f;
    }
  }
  HWY_INLINE void differentiate_quotient(int64_t row, int64_t tokens) const {
    const int64_t V = value_dim();
    for (int64_t t = 0; t < tokens; ++t) {
      float* to = scratch.dnum + t * stride();
      const float* dout = call.dout.at(row + t, head);
      if (call.problem.normalise) {
        const int64_t at = (row + t) * call.problem.num_heads + head;
        const float inverse = 1.0f / call.denominator[at];
        scale_row(inverse, dout, to, V);
        to[V] = -inverse * dot(dout, call.out.at(row + t, head), V);
      } else {
        copy(dout, to, V);
      }
    }
  }
  /// What a pass reads of head `of` in the chunk that starts at row `first`, which may lie outside.
  HWY_INLINE RowsAhead rows_ahead(int64_t first, int64_t of) const {
    return {.tensors = scratch.inputs,
            .widths = scratch.widths,
            .count = call.problem.normalise ? 5 : 4,
            .head = of,
            .first = first,
            .begin = first_row(),
            .end = first_row() + length()};
  }
  HWY_INLINE void write_dq(int64_t row, int64_t tokens) const {
    const Heads<float>& dq = call.gradients.dq;
    map().backward(map(), tokens, call.q.at(row, head), call.q.row_stride, scratch.phi_q,
                   scratch.dphi, dq.at(row, head), dq.row_stride);
  }
  HWY_INLINE void write_dk(int64_t row, int64_t tokens) const {
    const Heads<float>& dk = call.gradients.dk;
    map().backward(map(), tokens, call.k.at(row, head), call.k.row_stride, scratch.phi_k,
                   scratch.dphi, dk.at(row, head), dk.row_stride);
  }

  /// matrix [V (+ 1), F] = given sᵀ over z, zeros where not given; `plain` [F, V] likewise or null.
  HWY_INLINE void load_state(StatePointers<const float> given, float* matrix, float* plain) const {
    const int64_t F = features();
    const int64_t V = value_dim();
    zero(matrix, extended() * F);
    if (plain != nullptr) zero(plain, F * V);
    if (given.s != nullptr && given.s[sequence] != nullptr) {
      const float* s = given.s[sequence] + head * F * V;
      for (int64_t f = 0; f < F; ++f) {
        for (int64_t c = 0; c < V; ++c) matrix[c * F + f] = s[f * V + c];
      }
      if (plain != nullptr) copy(s, plain, F * V);
    }
    if (call.problem.normalise && given.z != nullptr && given.z[sequence] != nullptr) {
      copy(given.z[sequence] + head * F, matrix + V * F, F);
    }
  }

  HWY_INLINE void store_initial_gradient() const {
    const int64_t F = features();
    const int64_t V = value_dim();
    const StatePointers<float>& to = call.gradients.dinitial;
    if (to.s != nullptr) copy(r(), to.s[sequence] + head * F * V, F * V);
    if (to.z != nullptr) {
      float* dz = to.z[sequence] + head * F;
      if (call.problem.normalise) {
        copy(suffix() + V * F, dz, F);
      } else {
        zero(dz, F);
      }
    }
  }
};

HWY_INLINE void causal_prefix_chunk(const BackwardHead& h, int64_t chunk, const RowsAhead& ahead) {
  const BackwardScratch& scratch = h.scratch;
  const int64_t F = h.features();
  const int64_t row = h.chunk_row(chunk);
  const int64_t tokens = h.chunk_length(chunk);
  h.map_queries(row, tokens);
  h.map_keys(row, tokens);
  h.extend_values(row, tokens);
  h.differentiate_quotient(row, tokens);
  const Scan chunk_scan{.rows = h.extended(),
                        .columns = F,
                        .write = scratch.value,
                        .write_stride = h.stride(),
                        .value = scratch.phi_k,
                        .value_stride = F,
                        .read = scratch.dnum,
                        .read_stride = h.stride(),
                        .state = h.prefix(),
                        .state_stride = F,
                        .out = scratch.dphi,
                        .out_stride = F};
  scan_and_prefetch(chunk_scan, tokens, ahead);
  h.write_dq(row, tokens);
}

HWY_INLINE void causal_suffix_chunk(const BackwardHead& h, int64_t chunk, const RowsAhead& ahead) {
  const BackwardScratch& scratch = h.scratch;
  const Heads<float>& dv = h.call.gradients.dv;
  const int64_t F = h.features();
  const int64_t stride = h.stride();
  const int64_t row = h.chunk_row(chunk);
  const int64_t tokens = h.chunk_length(chunk);
  const int64_t last = tokens - 1;
  h.map_queries(row, tokens);
  h.map_keys(row, tokens);
  h.extend_values(row, tokens);
  h.differentiate_quotient(row, tokens);
  const Scan value_scan{.rows = F,
                        .columns = h.value_dim(),
                        .write = scratch.phi_q + last * F,
                        .write_stride = -F,
                        .value = scratch.dnum + last * stride,
                        .value_stride = -stride,
                        .read = scratch.phi_k + last * F,
                        .read_stride = -F,
                        .state = h.r(),
                        .state_stride = h.value_dim(),
                        .out = dv.at(row + last, h.head),
                        .out_stride = -dv.row_stride};
  scan_and_prefetch(value_scan, tokens, ahead);
  scan({.rows = h.extended(),
        .columns = F,
        .write = scratch.dnum + last * stride,
        .write_stride = -stride,
        .value = scratch.phi_q + last * F,
        .value_stride = -F,
        .read = scratch.value + last * stride,
        .read_stride = -stride,
        .state = h.suffix(),
        .state_stride = F,
        .out = scratch.dphi + last * F,
        .out_stride = -F},
       tokens);
  h.write_dk(row, tokens);
}

void causal_backward_items(const BackwardCall& call, int64_t begin, int64_t end, float* memory) {
  const BackwardScratch scratch(call, memory);
  while (begin < end) {
    const HeadGroup group = HeadGroup::at(call.problem, begin, end, call.group);
    begin += group.count;
    const auto head = [&](int64_t i) {
      return BackwardHead{call, scratch, group.sequence, group.first + i, i};
    };
    const int64_t chunks = head(0).num_chunks();
    for (int64_t i = 0; i < group.count; ++i) {
      head(i).load_state(call.initial, head(i).prefix(), nullptr);
      head(i).load_state(call.dfinal, head(i).suffix(), head(i).r());
    }
    // The heads take turns: after the last one the first reads on, in the pass's direction.
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      for (int64_t i = 0; i < group.count; ++i) {
        const bool same_rows = i + 1 < group.count;
        const BackwardHead h = head(i);
        causal_prefix_chunk(h, chunk,
                            h.rows_ahead(h.chunk_row(same_rows ? chunk : chunk + 1),
                                         group.first + (same_rows ? i + 1 : 0)));
      }
    }
    for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
      for (int64_t i = 0; i < group.count; ++i) {
        const bool same_rows = i + 1 < group.count;
        const BackwardHead h = head(i);
        causal_suffix_chunk(h, chunk,
                            h.rows_ahead(h.chunk_row(same_rows ? chunk : chunk - 1),
                                         group.first + (same_rows ? i + 1 : 0)));
      }
    }
    for (int64_t i = 0; i < group.count; ++i) head(i).store_initial_gradient();
  }
}

void full_backward_items(const BackwardCall& call, int64_t begin, int64_t end, float* memory) {
  const BackwardScratch scratch(call, memory);
  const Heads<float>& dv = call.gradients.dv;
  for (int64_t item = begin; item < end; ++item) {
    const BackwardHead h{call, scratch, item / call.problem.num_heads,
                         item % call.problem.num_heads, 0};
    const int64_t F = h.features();
    const int64_t V = h.value_dim();
    const int64_t E = h.extended();
    const int64_t stride = h.stride();
    h.load_state({}, scratch.prefix, nullptr);
    h.load_state({}, scratch.suffix, scratch.r);
    for (int64_t chunk = 0; chunk < h.num_chunks(); ++chunk) {
      const int64_t row = h.chunk_row(chunk);
      const int64_t tokens = h.chunk_length(chunk);
      h.map_queries(row, tokens);
      h.map_keys(row, tokens);
      h.extend_values(row, tokens);
      h.differentiate_quotient(row, tokens);
      small_gemm(E, F, tokens, {scratch.value, 1, stride}, scratch.phi_k, F, scratch.prefix, F,
                 true);
      small_gemm(E, F, tokens, {scratch.dnum, 1, stride}, scratch.phi_q, F, scratch.suffix, F,
                 true);
      small_gemm(F, V, tokens, {scratch.phi_q, 1, F}, scratch.dnum, stride, scratch.r, V, true);
    }
    for (int64_t chunk = 0; chunk < h.num_chunks(); ++chunk) {
      const int64_t row = h.chunk_row(chunk);
      const int64_t tokens = h.chunk_length(chunk);
      h.map_queries(row, tokens);
      h.map_keys(row, tokens);
      h.extend_values(row, tokens);
      h.differentiate_quotient(row, tokens);
      small_gemm(tokens, V, F, {scratch.phi_k, F, 1}, scratch.r, V, dv.at(row, h.head),
                 dv.row_stride, false);
      small_gemm(tokens, F, E, {scratch.dnum, stride, 1}, scratch.prefix, F, scratch.dphi, F,
                 false);
      h.write_dq(row, tokens);
      small_gemm(tokens, F, E, {scratch.value, stride, 1}, scratch.suffix, F, scratch.dphi, F,
                 false);
      h.write_dk(row, tokens);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(causal_backward_items);
HWY_EXPORT(full_backward_items);

void run_backward(BackwardCall& call, Arena& arena) {
  call.scratch_size = BackwardScratch(call, nullptr).space.used();
  for_each_head(call.problem, call.problem.sequences.count * call.problem.num_heads, call, arena);
}

}  // namespace

void causal_backward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                     Heads<const float> v, Heads<const float> out, const float* denominator,
                     StatePointers<const float> initial, Heads<const float> dout,
                     StatePointers<const float> dfinal, const StateUpdateGradients& gradients,
                     Arena& arena) noexcept {
  BackwardCall call{problem,
                    q,
                    k,
                    v,
                    out,
                    denominator,
                    initial,
                    dout,
                    dfinal,
                    gradients,
                    chunk_tokens(problem),
                    0,
                    HWY_DYNAMIC_DISPATCH(causal_backward_items)};
  call.group = heads_in_turn(
      problem, problem.feature_map.feature_dim * (2 * call.extended_dim() + problem.value_dim));
  run_backward(call, arena);
}

void full_backward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                   Heads<const float> v, Heads<const float> out, const float* denominator,
                   Heads<const float> dout, const StateUpdateGradients& gradients,
                   Arena& arena) noexcept {
  BackwardCall call{problem,
                    q,
                    k,
                    v,
                    out,
                    denominator,
                    {},
                    dout,
                    {},
                    gradients,
                    chunk_tokens(problem),
                    1,
                    HWY_DYNAMIC_DISPATCH(full_backward_items)};
  run_backward(call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
