#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/threads.h"
#include "kernels/layout.h"

namespace tarn::kernels {

/// Depthwise causal convolution over the tokens of each sequence, then SiLU:
///   y_t[c] = silu(bias[c] + Σ_w weight[c, w]·x_{t−W+1+w}[c])
/// Inputs before the sequence come from its state, [W − 1, channels], oldest first; without state they
/// are zero.
struct ConvolutionProblem {
  Sequences sequences;
  int64_t channels = 0;
  int64_t width = 0;              ///< W ≥ 1
  const float* weight = nullptr;  ///< [channels, W]; the last column multiplies the newest input
  const float* bias = nullptr;    ///< [channels], or null
  ThreadPool* pool = nullptr;     ///< shares channels: the bits do not depend on it
};

/// Rows have `channels` channels, whatever their heads. `state[i]` (null: zeros, not kept) becomes the
/// last W − 1 inputs. A channel's bits depend on its own inputs alone, not on how a sequence is split
/// over calls. Cost: 2·W flops and an exponential per channel and token; scratch W·channels floats.
void convolution_forward(const ConvolutionProblem& problem, Heads<const float> x,
                         float* const* state, Heads<float> y, Arena& arena) noexcept;

struct ConvolutionGradients {
  Heads<float> dx;                   ///< overwritten
  float* dweight = nullptr;          ///< [channels, W], added to
  float* dbias = nullptr;            ///< [channels], added to; null: not wanted
  float* const* dinitial = nullptr;  ///< of the state before the call; null: not wanted
};

/// Gradient of convolution_forward. `initial`: the state before the call (null: zeros); `dfinal`: the
/// gradient that arrives at the state after it (null: zeros). Sums run over the tokens in order.
/// Scratch: 3·W·channels floats.
void convolution_backward(const ConvolutionProblem& problem, Heads<const float> x,
                          const float* const* initial, Heads<const float> dy,
                          const float* const* dfinal, const ConvolutionGradients& gradients,
                          Arena& arena) noexcept;

namespace reference {
/// The definition, token by token in double; weight and bias as in the problem, whose own are not read.
void convolution(const ConvolutionProblem& problem, const double* weight, const double* bias,
                 Heads<const double> x, double* const* state, Heads<double> y);
}  // namespace reference

}  // namespace tarn::kernels
