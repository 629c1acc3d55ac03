#include <algorithm>

#include "kernels/cpu/latent_calls.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/latent_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent_backward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/latent_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

// Reading: with e_tl = do_t·z_l,  u_tl = scale·r_tl (e_tl − Σ_m r_tm e_tm):
//   dq_t = Σ_l u_tl κ_l    dκ_l += u_tl q_t    dz_l += r_tl do_t.
// Absorbing, backwards in time with G, Z and g the gradients of κ_l, z_l and ℓ_l after token t:
//   dk_t += a G    dv_t = Σ_l a Z    ds_t = a (1 − a) (G·(k_t − κ') + Z·(v_t − z')) + a g
//   G' = (1 − a) G    Z' = (1 − a) Z    g' = (1 − a) (g − a (G·(k_t − κ') + Z·(v_t − z')))
// where κ' and z' were there before the token. They need not be kept: X = G·κ + Z·z satisfies
// (1 − a)(G·κ' + Z·z') = X − a Y with Y = G·k_t + Z·v_t, so the bracket times 1 − a is Y − X.

/// What the scan forward leaves per token and latent.
struct Kept {
  float* weight;  ///< a
  float* read;    ///< r
  float* score;   ///< u
  float* inner;   ///< u q·κ + r do·z: what reading adds to X
};

/// Gradients that travel backwards.
struct Carried {
  float* keys;     ///< G [L, K]
  float* values;   ///< Z [L, V]
  float* log_sum;  ///< g [L]
  float* inner;    ///< X [L]
  float* dk;       ///< of one token
  float* dv;
};

HWY_INLINE void read_gradient(const LatentBackwardArgs& args, const LatentHead& one, int64_t row,
                              int64_t head, const Kept& kept) {
  const LatentProblem& problem = args.problem;
  const int64_t K = one.sizes.keys;
  const int64_t V = one.sizes.values;
  std::copy_n(args.q.at(row, head), problem.key_dim, one.q);
  std::copy_n(args.dout.at(row, head), problem.value_dim, one.dout);
  one.find_read_weights();
  float mean = 0.0f;
  for (int64_t l = 0; l < problem.num_latents; ++l) {
    kept.read[l] = one.read[l];
    kept.score[l] = padded_dot(V, one.dout, one.values + l * V);
    mean += one.read[l] * kept.score[l];
  }
  std::fill_n(one.k, K, 0.0f);
  for (int64_t l = 0; l < problem.num_latents; ++l) {
    const float gain = kept.score[l];
    kept.score[l] = static_cast<float>(problem.scale) * one.read[l] * (gain - mean);
    kept.inner[l] = kept.score[l] * padded_dot(K, one.q, one.keys + l * K) + one.read[l] * gain;
    padded_add(K, kept.score[l], one.keys + l * K, one.k);
  }
  std::copy_n(one.k, problem.key_dim, args.dq.at(row, head));
}

/// The token's q and dout join the carried gradients.
HWY_INLINE void carry_read(const LatentHead& one, const Kept& kept, const Carried& carried) {
  for (int64_t l = 0; l < one.problem.num_latents; ++l) {
    padded_add(one.sizes.keys, kept.score[l], one.q, carried.keys + l * one.sizes.keys);
    padded_add(one.sizes.values, kept.read[l], one.dout, carried.values + l * one.sizes.values);
    carried.inner[l] += kept.inner[l];
  }
}

/// Passes the carried gradients over the token in one.k, one.v; its own go to carried.dk and dv.
HWY_INLINE void absorb_gradient(const LatentHead& one, const float* weights, const float* latents,
                                const Carried& carried, float* dlatents) {
  const LatentProblem& problem = one.problem;
  const int64_t K = one.sizes.keys;
  const int64_t V = one.sizes.values;
  std::fill_n(carried.dk, K, 0.0f);
  std::fill_n(carried.dv, V, 0.0f);
  for (int64_t l = 0; l < problem.num_latents; ++l) {
    float* dkeys = carried.keys + l * K;
    float* dvalues = carried.values + l * V;
    const float a = weights[l];
    const float rest = 1.0f - a;
    const float y = padded_dot(K, dkeys, one.k) + padded_dot(V, dvalues, one.v);
    // With nothing left of what was there before, the weight is 1 whatever the score.
    const float bracket = rest == 0.0f ? 0.0f : y - carried.inner[l];
    const float dscore = a * (bracket + carried.log_sum[l]);
    carried.log_sum[l] = rest == 0.0f ? 0.0f : rest * carried.log_sum[l] - a * bracket;
    carried.inner[l] = rest == 0.0f ? 0.0f : carried.inner[l] - a * y;
    padded_add(K, a, dkeys, carried.dk);
    padded_add(V, a, dvalues, carried.dv);
    const float* latent = latents + l * problem.key_dim;
    for (int64_t i = 0; i < problem.key_dim; ++i) {
      carried.dk[i] += static_cast<float>(problem.scale) * dscore * latent[i];
      dlatents[l * problem.key_dim + i] += static_cast<float>(problem.scale) * dscore * one.k[i];
    }
    for (int64_t i = 0; i < K; ++i) dkeys[i] *= rest;
    for (int64_t i = 0; i < V; ++i) dvalues[i] *= rest;
  }
}

/// Gradients arriving at the final state, and X of them.
HWY_INLINE void start_carried(const LatentBackwardArgs& args, const LatentHead& one,
                              int64_t sequence, int64_t head, const Carried& carried) {
  const LatentProblem& problem = args.problem;
  const int64_t L = problem.num_latents;
  std::fill_n(carried.keys, L * one.sizes.keys, 0.0f);
  std::fill_n(carried.values, L * one.sizes.values, 0.0f);
  std::fill_n(carried.log_sum, L, 0.0f);
  std::fill_n(carried.inner, L, 0.0f);
  if (args.dfinal.log_sum == nullptr) return;
  std::copy_n(args.dfinal.log_sum[sequence] + head * L, L, carried.log_sum);
  for (int64_t l = 0; l < L; ++l) {
    float* dkeys = carried.keys + l * one.sizes.keys;
    float* dvalues = carried.values + l * one.sizes.values;
    std::copy_n(args.dfinal.keys[sequence] + (head * L + l) * problem.key_dim, problem.key_dim,
                dkeys);
    std::copy_n(args.dfinal.values[sequence] + (head * L + l) * problem.value_dim,
                problem.value_dim, dvalues);
    carried.inner[l] = padded_dot(one.sizes.keys, dkeys, one.keys + l * one.sizes.keys) +
                       padded_dot(one.sizes.values, dvalues, one.values + l * one.sizes.values);
  }
}

HWY_INLINE void store_initial(const LatentBackwardArgs& args, const LatentHead& one,
                              int64_t sequence, int64_t head, const Carried& carried) {
  const LatentProblem& problem = args.problem;
  const int64_t L = problem.num_latents;
  if (args.dinitial.log_sum == nullptr) return;
  std::copy_n(carried.log_sum, L, args.dinitial.log_sum[sequence] + head * L);
  for (int64_t l = 0; l < L; ++l) {
    std::copy_n(carried.keys + l * one.sizes.keys, problem.key_dim,
                args.dinitial.keys[sequence] + (head * L + l) * problem.key_dim);
    std::copy_n(carried.values + l * one.sizes.values, problem.value_dim,
                args.dinitial.values[sequence] + (head * L + l) * problem.value_dim);
  }
}

/// One sequence and head. `memory`: a LatentHead, Carried, then Kept of every token.
void latent_backward_head(const LatentBackwardArgs& args, int64_t sequence, int64_t head,
                          float* memory) {
  const LatentProblem& problem = args.problem;
  const int64_t L = problem.num_latents;
  const float* latents = args.latents + head * L * problem.key_dim;
  LatentHead one(problem, latents, memory);
  const int64_t begin = problem.sequences.begin[sequence];
  const int64_t length = problem.sequences.length[sequence];
  memory += latent_scratch_size(problem);
  Carried carried;
  carried.keys = memory;
  carried.values = carried.keys + L * one.sizes.keys;
  carried.log_sum = carried.values + L * one.sizes.values;
  carried.inner = carried.log_sum + one.sizes.latents;
  carried.dk = carried.inner + one.sizes.latents;
  carried.dv = carried.dk + one.sizes.keys;
  float* kept_memory = carried.dv + one.sizes.values;
  const auto kept = [&](int64_t r) {
    float* at = kept_memory + r * 4 * L;
    return Kept{at, at + L, at + 2 * L, at + 3 * L};
  };

  one.load(args.state, sequence, head);
  for (int64_t t = 0; t < length; t += kLatentTile) {
    const int64_t count = std::min(kLatentTile, length - t);
    one.score(count, args.k.at(begin + t, head), args.k.row_stride);
    for (int64_t r = t; r < t + count; ++r) {
      float* weights = one.scores + (r - t) * one.sizes.latents;
      std::copy_n(args.k.at(begin + r, head), problem.key_dim, one.k);
      std::copy_n(args.v.at(begin + r, head), problem.value_dim, one.v);
      one.absorb(weights);
      std::copy_n(weights, L, kept(r).weight);
      if (problem.causal) read_gradient(args, one, begin + r, head, kept(r));
    }
  }
  for (int64_t r = 0; r < length && !problem.causal; ++r) {
    read_gradient(args, one, begin + r, head, kept(r));
  }

  start_carried(args, one, sequence, head, carried);
  const auto load_reader = [&](int64_t r) {
    std::copy_n(args.q.at(begin + r, head), problem.key_dim, one.q);
    std::copy_n(args.dout.at(begin + r, head), problem.value_dim, one.dout);
  };
  for (int64_t r = 0; r < length && !problem.causal; ++r) {
    load_reader(r);
    carry_read(one, kept(r), carried);
  }
  std::fill_n(one.k, one.sizes.keys, 0.0f);
  for (int64_t r = length - 1; r >= 0; --r) {
    if (problem.causal) {
      load_reader(r);
      carry_read(one, kept(r), carried);
    }
    std::copy_n(args.k.at(begin + r, head), problem.key_dim, one.k);
    std::copy_n(args.v.at(begin + r, head), problem.value_dim, one.v);
    absorb_gradient(one, kept(r).weight, latents, carried,
                    args.dlatents + head * L * problem.key_dim);
    std::copy_n(carried.dk, problem.key_dim, args.dk.at(begin + r, head));
    std::copy_n(carried.dv, problem.value_dim, args.dv.at(begin + r, head));
  }
  store_initial(args, one, sequence, head, carried);
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {
namespace {

HWY_EXPORT(latent_backward_head);

}  // namespace

void latent_backward(const LatentProblem& problem, Heads<const float> q, Heads<const float> k,
                     Heads<const float> v, const float* latents, const LatentState& state,
                     Heads<const float> dout, const ConstLatentState& dfinal, Heads<float> dq,
                     Heads<float> dk, Heads<float> dv, float* dlatents, const LatentState& dinitial,
                     Arena& arena) noexcept {
  ArenaScope scope(arena);
  const LatentBackwardArgs args{problem, q,  k,  v,  latents,  state,   dout,
                                dfinal,  dq, dk, dv, dlatents, dinitial};
  int64_t longest = 0;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    longest = std::max(longest, problem.sequences.length[i]);
  }
  const LatentSizes sizes = latent_sizes(problem);
  const int64_t size =
      latent_scratch_size(problem) + 2 * sizes.latents +
      (problem.num_latents + 1) * (sizes.keys + sizes.values) +
      (longest * 4 * problem.num_latents + kLatentPad - 1) / kLatentPad * kLatentPad;
  const int threads = problem.pool == nullptr ? 1 : problem.pool->num_threads();
  float* scratch = arena.alloc<float>(threads * size);
  std::fill_n(scratch, threads * size, 0.0f);
  // Sequences one after the other: they share the gradient of their head's latents.
  parallel_for(problem.pool, problem.num_heads, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t head = begin; head < end; ++head) {
      for (int64_t i = 0; i < problem.sequences.count; ++i) {
        HWY_DYNAMIC_DISPATCH(latent_backward_head)(args, i, head, scratch + thread * size);
      }
    }
  });
}

}  // namespace tarn::kernels
#endif
