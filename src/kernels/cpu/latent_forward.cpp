#include <algorithm>

#include "kernels/cpu/latent_calls.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/latent_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent_forward.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/latent_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// o = Σ_l r_l z_l for the token of `row`.
HWY_INLINE void read_token(const LatentForwardArgs& args, const LatentHead& one, int64_t row,
                           int64_t head) {
  const LatentProblem& problem = args.problem;
  std::copy_n(args.q.at(row, head), problem.key_dim, one.q);
  one.find_read_weights();
  std::fill_n(one.dout, one.sizes.values, 0.0f);
  for (int64_t l = 0; l < problem.num_latents; ++l) {
    padded_add(one.sizes.values, one.read[l], one.values + l * one.sizes.values, one.dout);
  }
  std::copy_n(one.dout, problem.value_dim, args.out.at(row, head));
}

/// One sequence and head.
void latent_forward_head(const LatentForwardArgs& args, int64_t sequence, int64_t head,
                         float* memory) {
  const LatentProblem& problem = args.problem;
  LatentHead one(problem, args.latents + head * problem.num_latents * problem.key_dim, memory);
  one.load(args.state, sequence, head);
  const int64_t begin = problem.sequences.begin[sequence];
  const int64_t length = problem.sequences.length[sequence];
  for (int64_t t = 0; t < length; t += kLatentTile) {
    const int64_t count = std::min(kLatentTile, length - t);
    one.score(count, args.k.at(begin + t, head), args.k.row_stride);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = begin + t + r;
      std::copy_n(args.k.at(row, head), problem.key_dim, one.k);
      std::copy_n(args.v.at(row, head), problem.value_dim, one.v);
      one.absorb(one.scores + r * one.sizes.latents);
      if (problem.causal) read_token(args, one, row, head);
    }
  }
  for (int64_t r = 0; r < length && !problem.causal; ++r) read_token(args, one, begin + r, head);
  one.store(args.state, sequence, head);
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {
namespace {

HWY_EXPORT(latent_forward_head);

}  // namespace

void latent_forward(const LatentProblem& problem, Heads<const float> q, Heads<const float> k,
                    Heads<const float> v, const float* latents, const LatentState& state,
                    Heads<float> out, Arena& arena) noexcept {
  ArenaScope scope(arena);
  const LatentForwardArgs args{problem, q, k, v, latents, state, out};
  const int threads = problem.pool == nullptr ? 1 : problem.pool->num_threads();
  const int64_t size = latent_scratch_size(problem);
  float* scratch = arena.alloc<float>(threads * size);
  std::fill_n(scratch, threads * size, 0.0f);
  parallel_for(problem.pool, problem.sequences.count * problem.num_heads,
               [&](int64_t begin, int64_t end, int thread) {
                 for (int64_t item = begin; item < end; ++item) {
                   HWY_DYNAMIC_DISPATCH(latent_forward_head)
                   (args, item / problem.num_heads, item % problem.num_heads,
                    scratch + thread * size);
                 }
               });
}

}  // namespace tarn::kernels
#endif
