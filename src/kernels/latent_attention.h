#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/layout.h"

namespace tarn::kernels {

/// Attention through latents: learned queries c_l attend to the tokens, tokens attend to what the
/// latents hold. Per head, for token j with the score s_lj = scale·c_l·k_j:
///   ℓ_l = log Σ_j exp s_lj   κ_l = Σ_j exp(s_lj − ℓ_l) k_j   z_l = Σ_j exp(s_lj − ℓ_l) v_j
///   o_t = Σ_l r_tl z_l,   r_t = softmax_l(scale·q_t·κ_l)
/// over the tokens j ≤ t when causal, over all of them when not. As a recurrence of means, with no
/// exponent above 0: a = exp(s_lt − ℓ_l,t), κ_l += a·(k_t − κ_l), z_l += a·(v_t − z_l).
struct LatentProblem {
  Sequences sequences;
  int64_t num_heads = 0;
  int64_t num_latents = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  double scale = 1.0;
  bool causal = true;
  ThreadPool* pool = nullptr;
};

/// ℓ of a latent that has seen nothing.
inline constexpr float kNoLatentSum = -1e30f;

/// State of each sequence: log_sum [H, L], keys [H, L, K], values [H, L, V]. Null: none, latents
/// start empty. An empty latent has ℓ = kNoLatentSum and zeros.
struct LatentState {
  float* const* log_sum = nullptr;
  float* const* keys = nullptr;
  float* const* values = nullptr;
};
struct ConstLatentState {
  const float* const* log_sum = nullptr;
  const float* const* keys = nullptr;
  const float* const* values = nullptr;
};

/// `latents` [H, L, K]; state in/out. Same bits for any thread count and batch mates.
/// Cost: 2·T·L·(3·K + 2·V) flops per head; scratch O(L·(K + V)) per thread.
void latent_forward(const LatentProblem& problem, Heads<const float> q, Heads<const float> k,
                    Heads<const float> v, const float* latents, const LatentState& state,
                    Heads<float> out, Arena& arena) noexcept;

/// Gradient. `state` is that before the call (not modified), dfinal may be null, so may dinitial;
/// dq, dk, dv are overwritten, dlatents is added to. A scan forward keeps four numbers per token and
/// latent, one backward has the rest.
void latent_backward(const LatentProblem& problem, Heads<const float> q, Heads<const float> k,
                     Heads<const float> v, const float* latents, const LatentState& state,
                     Heads<const float> dout, const ConstLatentState& dfinal, Heads<float> dq,
                     Heads<float> dk, Heads<float> dv, float* dlatents, const LatentState& dinitial,
                     Arena& arena) noexcept;

}  // namespace tarn::kernels
