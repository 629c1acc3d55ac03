// One head of latent attention, compiled once per target.
#if defined(TARN_KERNELS_CPU_LATENT_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_LATENT_ATTENTION_INL_H_
#undef TARN_KERNELS_CPU_LATENT_ATTENTION_INL_H_
#else
#define TARN_KERNELS_CPU_LATENT_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/latent_calls.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// Rows here are padded with zeros to whole vectors: `size` is a multiple of kLanes.
HWY_INLINE float padded_dot(int64_t size, const float* a, const float* b) {
  const F32 d;
  VecF32 sum0 = hn::Zero(d), sum1 = sum0;
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
    sum1 = hn::MulAdd(hn::LoadU(d, a + i + kLanes), hn::LoadU(d, b + i + kLanes), sum1);
  }
  if (i < size) sum0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum0);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
}

/// to += factor·from.
HWY_INLINE void padded_add(int64_t size, float factor, const float* from, float* to) {
  const F32 d;
  const VecF32 f = hn::Set(d, factor);
  for (int64_t i = 0; i < size; i += kLanes) {
    hn::StoreU(hn::MulAdd(f, hn::LoadU(d, from + i), hn::LoadU(d, to + i)), d, to + i);
  }
}

/// mean += weight·(x − mean).
HWY_INLINE void padded_blend(int64_t size, float weight, const float* x, float* mean) {
  const F32 d;
  const VecF32 w = hn::Set(d, weight);
  for (int64_t i = 0; i < size; i += kLanes) {
    const VecF32 old = hn::LoadU(d, mean + i);
    hn::StoreU(hn::MulAdd(w, hn::Sub(hn::LoadU(d, x + i), old), old), d, mean + i);
  }
}

/// Scores become weights a = exp(s − ℓ) with the new ℓ = log(exp ℓ + exp s).
HWY_INLINE void weights_of_scores(int64_t latents, float* scores, float* log_sum) {
  const F32 d;
  for (int64_t l = 0; l < latents; l += kLanes) {
    const VecF32 s = hn::LoadU(d, scores + l);
    const VecF32 old = hn::LoadU(d, log_sum + l);
    const VecF32 difference = hn::Sub(s, old);
    const VecF32 small = exp_nonpositive(hn::Neg(hn::Abs(difference)));
    const VecF32 large_weight = hn::Div(hn::Set(d, 1.0f), hn::Add(hn::Set(d, 1.0f), small));
    const auto wins = hn::Ge(difference, hn::Zero(d));
    hn::StoreU(hn::IfThenElse(wins, large_weight, hn::Mul(small, large_weight)), d, scores + l);
    hn::StoreU(hn::Add(hn::Max(s, old), hn::Log1p(d, small)), d, log_sum + l);
  }
}

/// r = softmax of `count` scores, in place; entries from there to whole vectors become 0.
HWY_INLINE void softmax_of_scores(int64_t count, float* scores) {
  const F32 d;
  const int64_t padded = round_up_lanes(count);
  std::fill(scores + count, scores + padded, -std::numeric_limits<float>::infinity());
  VecF32 largest = hn::LoadU(d, scores);
  for (int64_t l = kLanes; l < padded; l += kLanes) {
    largest = hn::Max(largest, hn::LoadU(d, scores + l));
  }
  largest = hn::MaxOfLanes(d, largest);
  VecF32 sum = hn::Zero(d);
  for (int64_t l = 0; l < padded; l += kLanes) {
    const VecF32 weight = exp_nonpositive(hn::Sub(hn::LoadU(d, scores + l), largest));
    hn::StoreU(weight, d, scores + l);
    sum = hn::Add(sum, weight);
  }
  const VecF32 inverse = hn::Div(hn::Set(d, 1.0f), hn::SumOfLanes(d, sum));
  for (int64_t l = 0; l < padded; l += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, scores + l), inverse), d, scores + l);
  }
}

/// What one head works on; rows of L, K and V values are padded to multiples of kLatentPad.
struct LatentHead {
  const LatentProblem& problem;
  LatentSizes sizes;
  float* latents;  ///< [K, L], times scale
  float* scores;   ///< [kLatentTile, L]
  float* log_sum;  ///< [L]
  float* keys;     ///< [L, K]
  float* values;   ///< [L, V]
  float* k;        ///< one token
  float* v;
  float* q;
  float* dout;
  float* read;  ///< [L]

  /// `memory` has latent_scratch_size floats and is zeroed.
  LatentHead(const LatentProblem& p, const float* latent, float* memory)
      : problem(p), sizes(latent_sizes(p)) {
    const auto take = [&memory](int64_t size) {
      float* part = memory;
      memory += size;
      return part;
    };
    latents = take(p.key_dim * sizes.latents);
    scores = take(kLatentTile * sizes.latents);
    log_sum = take(sizes.latents);
    read = take(sizes.latents);
    keys = take(p.num_latents * sizes.keys);
    values = take(p.num_latents * sizes.values);
    k = take(sizes.keys);
    q = take(sizes.keys);
    v = take(sizes.values);
    dout = take(sizes.values);
    for (int64_t l = 0; l < p.num_latents; ++l) {
      for (int64_t i = 0; i < p.key_dim; ++i) {
        latents[i * sizes.latents + l] = static_cast<float>(p.scale) * latent[l * p.key_dim + i];
      }
    }
  }

  /// Starts from the state of one sequence and head, or from empty latents.
  void load(const LatentState& state, int64_t sequence, int64_t head) {
    const int64_t L = problem.num_latents;
    std::fill_n(log_sum, sizes.latents, kNoLatentSum);
    if (state.log_sum == nullptr) {
      std::fill_n(keys, L * sizes.keys, 0.0f);
      std::fill_n(values, L * sizes.values, 0.0f);
      return;
    }
    std::copy_n(state.log_sum[sequence] + head * L, L, log_sum);
    for (int64_t l = 0; l < L; ++l) {
      std::copy_n(state.keys[sequence] + (head * L + l) * problem.key_dim, problem.key_dim,
                  keys + l * sizes.keys);
      std::copy_n(state.values[sequence] + (head * L + l) * problem.value_dim, problem.value_dim,
                  values + l * sizes.values);
    }
  }
  void store(const LatentState& state, int64_t sequence, int64_t head) const {
    const int64_t L = problem.num_latents;
    if (state.log_sum == nullptr) return;
    std::copy_n(log_sum, L, state.log_sum[sequence] + head * L);
    for (int64_t l = 0; l < L; ++l) {
      std::copy_n(keys + l * sizes.keys, problem.key_dim,
                  state.keys[sequence] + (head * L + l) * problem.key_dim);
      std::copy_n(values + l * sizes.values, problem.value_dim,
                  state.values[sequence] + (head * L + l) * problem.value_dim);
    }
  }

  /// Scores of `count` tokens from `k_rows` on.
  void score(int64_t count, const float* k_rows, int64_t stride) const {
    small_gemm(count, sizes.latents, problem.key_dim, {k_rows, stride, 1}, latents, sizes.latents,
               scores, sizes.latents, false);
  }
  /// Token k, v joins the latents; its scores become its weights.
  void absorb(float* token_scores) const {
    weights_of_scores(sizes.latents, token_scores, log_sum);
    for (int64_t l = 0; l < problem.num_latents; ++l) {
      padded_blend(sizes.keys, token_scores[l], k, keys + l * sizes.keys);
      padded_blend(sizes.values, token_scores[l], v, values + l * sizes.values);
    }
  }
  /// r of token q, into `read`.
  void find_read_weights() const {
    for (int64_t l = 0; l < problem.num_latents; ++l) {
      read[l] =
          static_cast<float>(problem.scale) * padded_dot(sizes.keys, q, keys + l * sizes.keys);
    }
    softmax_of_scores(problem.num_latents, read);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_LATENT_ATTENTION_INL_H_
