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
  bool stream;    ///< dq, dk and dv bypass the caches
  void (*run)(const BackwardCall& call, int64_t begin, int64_t end, float* memory);
  void (*run_shared)(const BackwardCall& call, int64_t item, float* memory);
  int64_t scratch_size = 0;
  int64_t shared_scratch_size = 0;
  float* scratch = nullptr;

  void items(int64_t begin, int64_t end, float* memory) const { run(*this, begin, end, memory); }
  void shared(int64_t item, float* memory) const { run_shared(*this, item, memory); }
  int64_t extended_dim() const { return problem.value_dim + (problem.normalise ? 1 : 0); }
  /// Row stride of [v | 1] and [dnum | dden]: whole cache lines, so that vectors do not straddle.
  int64_t extended_stride() const {
    constexpr int64_t kLine = static_cast<int64_t>(kAlignment / sizeof(float));
    return (extended_dim() + kLine - 1) / kLine * kLine;
  }
};

struct BackwardScratch {
  /// For chunks of `tokens` tokens of `group` heads in turn.
  BackwardScratch(const BackwardCall& call, int64_t tokens, int64_t group, float* memory)
      : space(memory),
        chunk(tokens),
        inputs{call.q, call.k, call.v, call.dout, call.out},
        widths{call.problem.key_dim, call.problem.key_dim, call.problem.value_dim,
               call.problem.value_dim, call.problem.value_dim} {
    const int64_t features = call.problem.feature_map.feature_dim;
    const int64_t extended = call.extended_dim();
    const int64_t stride = call.extended_stride();
    phi_q = space.take(chunk * features);
    phi_k = space.take(chunk * features);
    dphi = space.take(chunk * features);
    dx = space.take(call.stream ? chunk * call.problem.key_dim : 0);
    value = space.take(chunk * stride);
    dnum = space.take(chunk * stride);
    r = space.take(group * features * call.problem.value_dim);
    prefix = space.take(group * extended * features);
    suffix = space.take(group * extended * features);
  }
  static BackwardScratch alone(const BackwardCall& call, float* memory) {
    return {call, call.chunk, call.group, memory};
  }
  /// Of each thread that shares a head.
  static BackwardScratch shared(const BackwardCall& call, float* memory) {
    return {call, kSharedChunk, 1, memory};
  }
  Scratch space;
  int64_t chunk;
  Heads<const float> inputs[5];
  int64_t widths[5];
  float* phi_q;   // [chunk, F]
  float* phi_k;   // [chunk, F]
  float* dphi;    // [chunk, F]
  float* dx;      // [chunk, K]: dq or dk on their way past the caches
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
  int64_t num_chunks() const { return (length() + scratch.chunk - 1) / scratch.chunk; }
  int64_t chunk_row(int64_t chunk) const { return first_row() + chunk * scratch.chunk; }
  int64_t chunk_length(int64_t chunk) const {
    return std::min(scratch.chunk, length() - chunk * scratch.chunk);
  }

  // Tokens [begin, end) of the chunk that starts at `row`.

  /// φ(q), φ(k), [v | 1] and [dnum | dden].
  HWY_INLINE void prepare(int64_t row, int64_t begin, int64_t end) const {
    const int64_t at = begin * features();
    map().forward(map(), end - begin, call.q.at(row + begin, head), call.q.row_stride,
                  scratch.phi_q + at);
    map().forward(map(), end - begin, call.k.at(row + begin, head), call.k.row_stride,
                  scratch.phi_k + at);
    extend_values(row, begin, end);
    differentiate_quotient(row, begin, end);
  }
  HWY_INLINE void extend_values(int64_t row, int64_t begin, int64_t end) const {
    for (int64_t t = begin; t < end; ++t) {
      float* to = scratch.value + t * stride();
      copy(call.v.at(row + t, head), to, value_dim());
      if (call.problem.normalise) to[value_dim()] = 1.0f;
    }
  }
  HWY_INLINE void differentiate_quotient(int64_t row, int64_t begin, int64_t end) const {
    const int64_t V = value_dim();
    for (int64_t t = begin; t < end; ++t) {
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
  HWY_INLINE void write_dq(int64_t row, int64_t begin, int64_t end) const {
    differentiate_map(call.q, scratch.phi_q, call.gradients.dq, row, begin, end);
  }
  HWY_INLINE void write_dk(int64_t row, int64_t begin, int64_t end) const {
    differentiate_map(call.k, scratch.phi_k, call.gradients.dk, row, begin, end);
  }
  HWY_INLINE void differentiate_map(const Heads<const float>& x, const float* phi,
                                    const Heads<float>& dx, int64_t row, int64_t begin,
                                    int64_t end) const {
    const int64_t at = begin * features();
    const int64_t width = call.problem.key_dim;
    float* to = dx.at(row + begin, head);
    float* written = call.stream ? scratch.dx + begin * width : to;
    map().backward(map(), end - begin, x.at(row + begin, head), x.row_stride, phi + at,
                   scratch.dphi + at, written, call.stream ? width : dx.row_stride);
    if (call.stream) stream_rows(written, end - begin, width, to, dx.row_stride);
  }

  /// dφ(q) of a chunk.
  HWY_INLINE Scan query_scan() const {
    return {.rows = extended(),
            .columns = features(),
            .write = scratch.value,
            .write_stride = stride(),
            .value = scratch.phi_k,
            .value_stride = features(),
            .read = scratch.dnum,
            .read_stride = stride(),
            .state = prefix(),
            .state_stride = features(),
            .out = scratch.dphi,
            .out_stride = features()};
  }
  /// dφ(k) of a chunk, from its token `last` back in time.
  HWY_INLINE Scan key_scan(int64_t last) const {
    const int64_t F = features();
    return {.rows = extended(),
            .columns = F,
            .write = scratch.dnum + last * stride(),
            .write_stride = -stride(),
            .value = scratch.phi_q + last * F,
            .value_stride = -F,
            .read = scratch.value + last * stride(),
            .read_stride = -stride(),
            .state = suffix(),
            .state_stride = F,
            .out = scratch.dphi + last * F,
            .out_stride = -F};
  }
  /// dv of the chunk that starts at `row`, likewise.
  HWY_INLINE Scan value_scan(int64_t row, int64_t last) const {
    const Heads<float>& dv = call.gradients.dv;
    const int64_t F = features();
    return {.rows = F,
            .columns = value_dim(),
            .write = scratch.phi_q + last * F,
            .write_stride = -F,
            .value = scratch.dnum + last * stride(),
            .value_stride = -stride(),
            .read = scratch.phi_k + last * F,
            .read_stride = -F,
            .state = r(),
            .state_stride = value_dim(),
            .out = dv.at(row + last, head),
            .out_stride = -dv.row_stride,
            .stream = call.stream};
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

  HWY_INLINE void load_states() const {
    load_state(call.initial, prefix(), nullptr);
    load_state(call.dfinal, suffix(), r());
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
  const int64_t row = h.chunk_row(chunk);
  const int64_t tokens = h.chunk_length(chunk);
  h.prepare(row, 0, tokens);
  if (!h.call.stream) {
    prefetch_for_writing(h.call.gradients.dq, row, tokens, h.head, h.call.problem.key_dim);
  }
  scan_and_prefetch(h.query_scan(), tokens, ahead);
  h.write_dq(row, 0, tokens);
}

HWY_INLINE void causal_suffix_chunk(const BackwardHead& h, int64_t chunk, const RowsAhead& ahead) {
  const int64_t row = h.chunk_row(chunk);
  const int64_t tokens = h.chunk_length(chunk);
  h.prepare(row, 0, tokens);
  if (!h.call.stream) {
    prefetch_for_writing(h.call.gradients.dv, row, tokens, h.head, h.value_dim());
  }
  scan_and_prefetch(h.value_scan(row, tokens - 1), tokens, ahead);
  if (!h.call.stream) {
    prefetch_for_writing(h.call.gradients.dk, row, tokens, h.head, h.call.problem.key_dim);
  }
  scan(h.key_scan(tokens - 1), tokens);
  h.write_dk(row, 0, tokens);
}

void causal_backward_items(const BackwardCall& call, int64_t begin, int64_t end, float* memory) {
  const BackwardScratch scratch = BackwardScratch::alone(call, memory);
  while (begin < end) {
    const HeadGroup group = HeadGroup::at(call.problem, begin, end, call.group);
    begin += group.count;
    const auto head = [&](int64_t i) {
      return BackwardHead{call, scratch, group.sequence, group.first + i, i};
    };
    const int64_t chunks = head(0).num_chunks();
    for (int64_t i = 0; i < group.count; ++i) head(i).load_states();
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
  if (call.stream) hwy::FlushStream();
}

/// One head by all threads, each with columns of every state of its own. Every thread prepares all
/// rows, which costs less than fetching what another core has written; only dφ changes hands.
void causal_backward_shared(const BackwardCall& call, int64_t item, float* memory) {
  const int64_t threads = call.problem.pool->num_threads();
  const HeadGroup group = HeadGroup::at(call.problem, item, item + 1, 1);
  const BackwardScratch common = BackwardScratch::shared(call, memory);
  const auto own = [&](int64_t thread) {
    BackwardScratch scratch = BackwardScratch::shared(call, memory + thread * common.space.used());
    scratch.dphi = common.dphi;
    scratch.r = common.r;
    scratch.prefix = common.prefix;
    scratch.suffix = common.suffix;
    return scratch;
  };
  const auto with_head = [&](int64_t thread, const auto& body) {
    const BackwardScratch scratch = own(thread);
    body(BackwardHead{call, scratch, group.sequence, group.first, 0});
    if (call.stream) hwy::FlushStream();
  };
  const Together together{call.problem.pool};
  const BackwardHead whole{call, common, group.sequence, group.first, 0};
  whole.load_states();
  for (int64_t chunk = 0; chunk < whole.num_chunks(); ++chunk) {
    const int64_t row = whole.chunk_row(chunk);
    const int64_t tokens = whole.chunk_length(chunk);
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.prepare(row, 0, tokens);
        scan_part(h.query_scan(), tokens, thread, threads);
      });
    });
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.write_dq(row, tokens * thread / threads, tokens * (thread + 1) / threads);
      });
    });
  }
  for (int64_t chunk = whole.num_chunks() - 1; chunk >= 0; --chunk) {
    const int64_t row = whole.chunk_row(chunk);
    const int64_t tokens = whole.chunk_length(chunk);
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.prepare(row, 0, tokens);
        scan_part(h.value_scan(row, tokens - 1), tokens, thread, threads);
        scan_part(h.key_scan(tokens - 1), tokens, thread, threads);
      });
    });
    together(threads, [&](int64_t thread, int64_t, int) {
      with_head(thread, [&](const BackwardHead& h) {
        h.write_dk(row, tokens * thread / threads, tokens * (thread + 1) / threads);
      });
    });
  }
  whole.store_initial_gradient();
}

/// The totals of a chunk: columns [begin, end) of those that are F wide.
HWY_INLINE void add_feature_totals(const BackwardHead& h, int64_t tokens, int64_t begin,
                                   int64_t end) {
  const BackwardScratch& scratch = h.scratch;
  const int64_t F = h.features();
  small_gemm(h.extended(), end - begin, tokens, {scratch.value, 1, h.stride()},
             scratch.phi_k + begin, F, h.prefix() + begin, F, true);
  small_gemm(h.extended(), end - begin, tokens, {scratch.dnum, 1, h.stride()},
             scratch.phi_q + begin, F, h.suffix() + begin, F, true);
}

/// The same of those that are V wide.
HWY_INLINE void add_value_totals(const BackwardHead& h, int64_t tokens, int64_t begin,
                                 int64_t end) {
  small_gemm(h.features(), end - begin, tokens, {h.scratch.phi_q, 1, h.features()},
             h.scratch.dnum + begin, h.stride(), h.r() + begin, h.value_dim(), true);
}

/// The gradients of tokens [begin, end) of the chunk that starts at `row`, from the totals.
HWY_INLINE void full_backward_rows(const BackwardHead& h, int64_t row, int64_t begin, int64_t end) {
  const BackwardScratch& scratch = h.scratch;
  const Heads<float>& dv = h.call.gradients.dv;
  const int64_t F = h.features();
  const int64_t V = h.value_dim();
  const int64_t E = h.extended();
  const int64_t stride = h.stride();
  const int64_t rows = end - begin;
  float* dphi = scratch.dphi + begin * F;
  h.prepare(row, begin, end);
  small_gemm(rows, V, F, {scratch.phi_k + begin * F, F, 1}, h.r(), V, dv.at(row + begin, h.head),
             dv.row_stride, false);
  small_gemm(rows, F, E, {scratch.dnum + begin * stride, stride, 1}, h.prefix(), F, dphi, F, false);
  h.write_dq(row, begin, end);
  small_gemm(rows, F, E, {scratch.value + begin * stride, stride, 1}, h.suffix(), F, dphi, F,
             false);
  h.write_dk(row, begin, end);
}

/// `split` is Alone or Together.
template <class Split>
HWY_INLINE void full_backward_head(const BackwardHead& h, const Split& split) {
  h.load_state({}, h.prefix(), nullptr);
  h.load_state({}, h.suffix(), h.r());
  for (int64_t chunk = 0; chunk < h.num_chunks(); ++chunk) {
    const int64_t row = h.chunk_row(chunk);
    const int64_t tokens = h.chunk_length(chunk);
    split(tokens, [&](int64_t begin, int64_t end, int) { h.prepare(row, begin, end); });
    split_columns(h.features(), split,
                  [&](int64_t begin, int64_t end) { add_feature_totals(h, tokens, begin, end); });
    split_columns(h.value_dim(), split,
                  [&](int64_t begin, int64_t end) { add_value_totals(h, tokens, begin, end); });
  }
  for (int64_t chunk = 0; chunk < h.num_chunks(); ++chunk) {
    split(h.chunk_length(chunk), [&](int64_t begin, int64_t end, int) {
      full_backward_rows(h, h.chunk_row(chunk), begin, end);
    });
  }
}

void full_backward_items(const BackwardCall& call, int64_t begin, int64_t end, float* memory) {
  const BackwardScratch scratch = BackwardScratch::alone(call, memory);
  const int64_t heads = call.problem.num_heads;
  for (int64_t item = begin; item < end; ++item) {
    full_backward_head(BackwardHead{call, scratch, item / heads, item % heads, 0}, Alone());
  }
}

void full_backward_shared(const BackwardCall& call, int64_t item, float* memory) {
  const BackwardScratch scratch = BackwardScratch::shared(call, memory);
  const int64_t heads = call.problem.num_heads;
  full_backward_head(BackwardHead{call, scratch, item / heads, item % heads, 0},
                     Together{call.problem.pool});
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tarn::kernels {
namespace {

HWY_EXPORT(causal_backward_items);
HWY_EXPORT(causal_backward_shared);
HWY_EXPORT(full_backward_items);
HWY_EXPORT(full_backward_shared);

void run_backward(BackwardCall& call, Arena& arena) {
  call.scratch_size = BackwardScratch::alone(call, nullptr).space.used();
  if (call.problem.pool != nullptr) {
    call.shared_scratch_size =
        call.problem.pool->num_threads() * BackwardScratch::shared(call, nullptr).space.used();
  }
  for_each_head_or_shared(call.problem, call.problem.sequences.count * call.problem.num_heads, call,
                          arena);
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
                    causal_chunk_tokens(problem),
                    0,
                    bypasses_caches(problem, gradients.dq, problem.key_dim) &&
                        bypasses_caches(problem, gradients.dk, problem.key_dim) &&
                        bypasses_caches(problem, gradients.dv, problem.value_dim),
                    HWY_DYNAMIC_DISPATCH(causal_backward_items),
                    HWY_DYNAMIC_DISPATCH(causal_backward_shared)};
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
                    full_chunk_tokens(problem),
                    1,
                    false,
                    HWY_DYNAMIC_DISPATCH(full_backward_items),
                    HWY_DYNAMIC_DISPATCH(full_backward_shared)};
  run_backward(call, arena);
}

}  // namespace tarn::kernels

#endif  // HWY_ONCE
