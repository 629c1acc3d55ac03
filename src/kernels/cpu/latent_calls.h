#pragma once

#include "kernels/latent_attention.h"

namespace tarn::kernels {

/// Whole vectors of any target.
inline constexpr int64_t kLatentPad = 16;
/// Tokens whose scores are computed together.
inline constexpr int64_t kLatentTile = 32;

/// Padded row lengths.
struct LatentSizes {
  int64_t latents = 0;
  int64_t keys = 0;
  int64_t values = 0;
};

inline LatentSizes latent_sizes(const LatentProblem& problem) {
  const auto padded = [](int64_t n) { return (n + kLatentPad - 1) / kLatentPad * kLatentPad; };
  return {padded(problem.num_latents), padded(problem.key_dim), padded(problem.value_dim)};
}

/// Floats of a LatentHead.
inline int64_t latent_scratch_size(const LatentProblem& problem) {
  const LatentSizes sizes = latent_sizes(problem);
  return sizes.latents * (problem.key_dim + kLatentTile + 2) +
         (problem.num_latents + 2) * (sizes.keys + sizes.values);
}

struct LatentForwardArgs {
  const LatentProblem& problem;
  Heads<const float> q;
  Heads<const float> k;
  Heads<const float> v;
  const float* latents = nullptr;
  LatentState state;
  Heads<float> out;
};

struct LatentBackwardArgs {
  const LatentProblem& problem;
  Heads<const float> q;
  Heads<const float> k;
  Heads<const float> v;
  const float* latents = nullptr;
  LatentState state;
  Heads<const float> dout;
  ConstLatentState dfinal;
  Heads<float> dq;
  Heads<float> dk;
  Heads<float> dv;
  float* dlatents = nullptr;
  LatentState dinitial;
};

}  // namespace tarn::kernels
