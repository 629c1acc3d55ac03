#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/layout.h"

namespace tarn::kernels {

/// How a state forgets. Decays are given as g = log α ≤ 0.
enum class Decay : uint8_t {
  kNone,
  kPerHead,     ///< one constant per head (retention, lightning attention)
  kPerToken,    ///< one scalar per head and token (Mamba-2, gated delta rule)
  kPerChannel,  ///< one per key channel and token (gated linear attention, Kimi, RWKV-7)
};

/// What a token removes from the state before it writes.
enum class Erase : uint8_t {
  kNone,
  kDelta,    ///< what the decayed state answers to k, times β
  kRankOne,  ///< a ⊗ (answer of the state before its decay to b)
};

/// The state-update family with decay and erasure, without normaliser. Per head, token by token:
///   kNone:     S_t = e^{g_t} ∘ S_{t-1} + β_t k_t ⊗ v_t
///   kDelta:    S_t = S' + β_t k_t ⊗ (v_t − S'ᵀ k_t),  S' = e^{g_t} ∘ S_{t-1}
///   kRankOne:  S_t = e^{g_t} ∘ S_{t-1} + a_t ⊗ (S_{t-1}ᵀ b_t) + k_t ⊗ v_t
///   o_t = scale · S_tᵀ q_t
/// where e^{g} scales rows of S (key channels), or all of S. Sources: Sun 2023 (arXiv 2307.08621), Yang
/// 2024 (2312.06635, 2406.06484, 2412.06464), Dao 2024 (2405.21060), Kimi 2025 (2510.26692), Peng
/// 2025 (2503.14456).
struct StateTransitionProblem {
  Sequences sequences;
  int64_t num_heads = 0;      ///< of v, g, β, out and the state
  int64_t num_key_heads = 0;  ///< of q, k, a and b; divides num_heads: head h reads key head
                              ///< h / (num_heads / num_key_heads)
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  Decay decay = Decay::kNone;
  Erase erase = Erase::kNone;
  const double* head_decay = nullptr;  ///< kPerHead: g of each head
  double scale = 1.0;
  int64_t chunk_size = 0;      ///< tokens per chunk; 0 lets the kernel choose by shape alone
  ThreadPool* pool = nullptr;  ///< null: serial. The result's bits do not depend on it
};

/// Rows of the operator. What a policy does not use is null; β null means 1.
template <class T>
struct StateTransitionRows {
  Heads<T> q, k, v;
  Heads<T> g;     ///< kPerToken: 1 channel, kPerChannel: key_dim channels
  Heads<T> beta;  ///< kNone, kDelta: 1 channel
  Heads<T> a, b;  ///< kRankOne: key_dim channels
};

/// Whole sequences in chunks, as products of matrices (the WY form for erasure: Yang 2024, arXiv
/// 2406.06484, section 3); continues from and updates state[i], [num_heads, key_dim, value_dim] f32
/// dense, in place (null: from zeros, not returned). Every exponent that is taken is ≤ 0. Bits do not
/// depend on threads or batch mates, but on how a sequence is split over calls.
/// Cost: 6·T·K·V flops per head with erasure, 4 without, plus O(T·C·(K + V)); scratch
/// O(C·(K + V) + K·V) per thread.
void transition_forward(const StateTransitionProblem& problem,
                        const StateTransitionRows<const float>& rows, float* const* state,
                        Heads<float> out, Arena& arena) noexcept;

/// Where gradients go; all that the policies use are overwritten, the others stay null.
struct StateTransitionGradients {
  StateTransitionRows<float> rows;
  float* const* dinitial = nullptr;  ///< of the initial state; null: not wanted
};

/// Gradient of transition_forward. `initial`: the state before the call (null: zeros); `dfinal`: the
/// gradient that arrives at the final state (null: zeros). States at chunk borders are computed again:
/// no per-token state, no T×T matrix is stored. A key head's gradients are sums over its heads in
/// order.
void transition_backward(const StateTransitionProblem& problem,
                         const StateTransitionRows<const float>& rows, const float* const* initial,
                         Heads<const float> dout, const float* const* dfinal,
                         const StateTransitionGradients& gradients, Arena& arena) noexcept;

/// One token per sequence: row sequences.begin[i] updates state[i] in place and is answered. Same
/// bits whatever the batch mates. Cost: two passes over the state with erasure, one without.
void transition_step(const StateTransitionProblem& problem,
                     const StateTransitionRows<const float>& rows, float* const* state,
                     Heads<float> out, Arena& arena) noexcept;

namespace reference {
/// The token loop in double precision: ground truth for the forms above.
void state_transition(const StateTransitionProblem& problem,
                      const StateTransitionRows<const double>& rows, double* const* state,
                      Heads<double> out);
}  // namespace reference

}  // namespace tarn::kernels
