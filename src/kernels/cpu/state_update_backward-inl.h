// One head of a backward call, compiled once per target.
#if defined(TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_INL_H_
#undef TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_INL_H_
#else
#define TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/state_scan-inl.h"
#include "kernels/cpu/state_update_calls.h"
#include "kernels/cpu/state_update_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

// Gradient of o = num / den, with num_t = S_tᵀφ(q_t) and den_t = φ(q_t)·z_t + ε:
//   dnum = dout / den,  dden = −(dout·out) / den
//   dφ(q_t) = S_t dnum_t + z_t dden_t                      S, z: sums over tokens ≤ t
//   dφ(k_t) = R_t v_t + w_t,  dv_t = R_tᵀ φ(k_t)           R, w: sums over tokens ≥ t of
//                                                          φ(q) ⊗ dnum and φ(q)·dden
// Each line is the recurrence of state_scan-inl.h in one direction of time. Writing [v | 1] and
// [dnum | dden] for the rows with one more column, z is the last row of Sᵀ and w that of Rᵀ.

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

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_STATE_UPDATE_BACKWARD_INL_H_
