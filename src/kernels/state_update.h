#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/feature_map.h"
#include "kernels/layout.h"

namespace tarn::kernels {

/// The state-update family with φ, additive writes and an optional normaliser:
///   S_t = S_{t-1} + φ(k_t) ⊗ v_t      z_t = z_{t-1} + φ(k_t)
///   o_t = S_tᵀ φ(q_t) / (φ(q_t)·z_t + ε)      (without the division when `normalise` is false)
/// Source: Katharopoulos 2020 (arXiv 2006.16236), eqs. 8-12 (forward), 13-15 (gradient).
struct StateUpdateProblem {
  Sequences sequences;
  int64_t num_heads = 0;
  int64_t key_dim = 0;    ///< channels of q and k before φ
  int64_t value_dim = 0;  ///< channels of v and out
  FeatureMap feature_map;
  bool normalise = true;  ///< false: z is neither read nor written, its gradients are zero
  float eps = 1e-6f;
  int64_t chunk_size = 0;      ///< tokens per chunk; 0 lets the kernel choose by shape alone.
                               ///< A matter of speed: the result's bits do not depend on it
  ThreadPool* pool = nullptr;  ///< null: serial. The result's bits do not depend on it
};

/// Per-sequence state pointers: s[i] is [num_heads, feature_dim, value_dim], z[i] is
/// [num_heads, feature_dim]; both f32, dense. A null `s` stands for zeros / not wanted.
template <class T>
struct StatePointers {
  T* const* s = nullptr;
  T* const* z = nullptr;
};

/// Causal forward over whole sequences in chunks; continues from and updates `state` in place.
/// `denominator` [rows, num_heads] (nullable) receives φ(q)·z + ε for the backward pass.
/// Per element the sums run in token order, so splitting a sequence over calls, or stepping through
/// it, gives the same bits. Blocks of four tokens pass each row of S while it is in registers: no
/// product of tokens with tokens. Cost: 4·T·F·V flops per head; scratch O(C·F + F·V) per thread.
void causal_forward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                    Heads<const float> v, StatePointers<float> state, Heads<float> out,
                    float* denominator, Arena& arena) noexcept;

/// causal_forward for q, k, v and out in bf16 (their bits); the state, the denominators and all sums
/// stay f32. Where the CPU has dot products of bf16 pairs and all dimensions are multiples of 32, φ(q),
/// φ(k), the state's copy that queries read and the weights within blocks of 32 tokens are rounded
/// to bf16 (relative error of a few 2⁻⁹), and a value that is not finite reaches the outputs of its
/// whole block; elsewhere rows are widened and the arithmetic is that of causal_forward. Bits do
/// not depend on threads or batch mates, but on how a sequence is split over calls. Cost and
/// scratch as above, and H·(2K + 2V) floats for each of 256 tokens where rows are widened.
void causal_forward_bf16(const StateUpdateProblem& problem, Heads<const uint16_t> q,
                         Heads<const uint16_t> k, Heads<const uint16_t> v,
                         StatePointers<float> state, Heads<uint16_t> out, float* denominator,
                         Arena& arena) noexcept;

/// The same result the way a transformer computes it: every query against every earlier key,
///   o_t = Σ_{j ≤ t} (φ(q_t)·φ(k_j)) v_j / (Σ_{j ≤ t} φ(q_t)·φ(k_j) + ε),
/// block by block, no T×T matrix. Shares no arithmetic with the recurrence, so agreement of the two
/// is evidence. Continues from and updates `state`. Cost: O(T²·(F + V)) flops per head.
void causal_parallel_forward(const StateUpdateProblem& problem, Heads<const float> q,
                             Heads<const float> k, Heads<const float> v, StatePointers<float> state,
                             Heads<float> out, float* denominator, Arena& arena) noexcept;

struct StateUpdateGradients {
  Heads<float> dq, dk, dv;
  StatePointers<float> dinitial;  ///< receives the gradient of the initial state; or null
};

/// Gradient of causal_forward by prefix sums (dq) and suffix sums (dk, dv): stores no per-token
/// state and no T×T matrix. `initial` is the state before the forward call (null: zeros), `dfinal`
/// the gradient that arrives at the final state (null: zeros). `out` and `denominator` are what
/// forward wrote. dq, dk and dv are overwritten. Cost: 12·T·F·V flops per head; scratch
/// O(F·V + C·(F+V)) per thread, whatever T is.
void causal_backward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                     Heads<const float> v, Heads<const float> out, const float* denominator,
                     StatePointers<const float> initial, Heads<const float> dout,
                     StatePointers<const float> dfinal, const StateUpdateGradients& gradients,
                     Arena& arena) noexcept;

/// Non-causal: every query reads the totals over its whole sequence. Cost and scratch as above.
void full_forward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                  Heads<const float> v, Heads<float> out, float* denominator,
                  Arena& arena) noexcept;
void full_backward(const StateUpdateProblem& problem, Heads<const float> q, Heads<const float> k,
                   Heads<const float> v, Heads<const float> out, const float* denominator,
                   Heads<const float> dout, const StateUpdateGradients& gradients,
                   Arena& arena) noexcept;

/// One token per sequence: row sequences.begin[i] updates state i in place and is answered.
/// Same bits for a sequence whatever its batch mates. Cost: 4·F·V flops, one pass over the state.
void state_update_step(const StateUpdateProblem& problem, Heads<const float> q,
                       Heads<const float> k, Heads<const float> v, StatePointers<float> state,
                       Heads<float> out, Arena& arena) noexcept;

namespace reference {
/// The token loop in double precision: ground truth for every form above. `state` as above
/// (null: zeros, not returned). `causal` false gives the non-causal form.
void state_update(const StateUpdateProblem& problem, bool causal, Heads<const double> q,
                  Heads<const double> k, Heads<const double> v, StatePointers<double> state,
                  Heads<double> out);
}  // namespace reference

}  // namespace tarn::kernels
