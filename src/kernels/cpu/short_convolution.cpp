#include "kernels/short_convolution.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/short_convolution.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/gates-inl.h"

namespace tarn::kernels {
#ifndef TARN_KERNELS_CPU_SHORT_CONVOLUTION_CALL
#define TARN_KERNELS_CPU_SHORT_CONVOLUTION_CALL
/// Channels that a thread takes at least, and at most together, so that a row of all that the
/// gradient touches stays near.
constexpr int64_t kBlockChannels = 32;
constexpr int64_t kMostChannels = 1024;

struct ConvolutionForward {
  const ConvolutionProblem& problem;
  Heads<const float> x;
  float* const* state;
  Heads<float> y;
  const float* taps;  ///< [W, channels]: the weight transposed
};

struct ConvolutionBackward {
  const ConvolutionProblem& problem;
  Heads<const float> x;
  const float* const* initial;
  Heads<const float> dy;
  const float* const* dfinal;
  const ConvolutionGradients& gradients;
  const float* taps;
  float* dtaps;  ///< [W, channels], zero at the start
};
#endif
}  // namespace tarn::kernels

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

/// Row t of sequence i: an input, or for t < 0 a row of the state; null where that is zero.
HWY_INLINE const float* input_row(const ConvolutionProblem& problem, Heads<const float> x,
                                  const float* state, int64_t i, int64_t t) {
  if (t >= 0) return x.at(problem.sequences.begin[i] + t, 0);
  return state == nullptr ? nullptr : state + (problem.width - 1 + t) * problem.channels;
}

/// bias + Σ taps·inputs of one vector of channels, oldest input first.
template <class Load>
HWY_INLINE VecF32 convolve(const ConvolutionProblem& problem, Heads<const float> x,
                           const float* state, const float* taps, int64_t i, int64_t t, int64_t c,
                           const Load& load) {
  VecF32 sum = problem.bias != nullptr ? load(problem.bias + c) : hn::Zero(F32());
  for (int64_t w = 0; w < problem.width; ++w) {
    const float* row = input_row(problem, x, state, i, t - problem.width + 1 + w);
    if (row == nullptr) continue;
    sum = hn::MulAdd(load(taps + w * problem.channels + c), load(row + c), sum);
  }
  return sum;
}

/// Moves the last W − 1 inputs of channels [first, first + count) into the state, oldest first: a row
/// that is still needed lies behind the one that is written.
void keep_inputs(const ConvolutionForward& call, int64_t i, int64_t first, int64_t count) {
  if (call.state == nullptr) return;
  const int64_t kept = call.problem.width - 1;
  float* state = call.state[i];
  for (int64_t s = 0; s < kept; ++s) {
    const int64_t t = call.problem.sequences.length[i] - kept + s;
    const float* from = input_row(call.problem, call.x, state, i, t) + first;
    std::copy(from, from + count, state + s * call.problem.channels + first);
  }
}

void forward_channels_impl(const ConvolutionForward& call, int64_t first, int64_t count) {
  const ConvolutionProblem& problem = call.problem;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    const float* state = call.state != nullptr ? call.state[i] : nullptr;
    for (int64_t t = 0; t < problem.sequences.length[i]; ++t) {
      float* to = call.y.at(problem.sequences.begin[i] + t, 0) + first;
      for_each_vector(count, [&](int64_t c, const auto& load, const auto& store) HWY_ATTR {
        const VecF32 sum = convolve(problem, call.x, state, call.taps, i, t, first + c, load);
        store(gate_of<GateFunction::kSilu>(sum), to + c);
      });
    }
    keep_inputs(call, i, first, count);
  }
}

/// Where the gradient of input t goes: a row of dx, or of dinitial; null where it is not wanted.
HWY_INLINE float* gradient_row(const ConvolutionBackward& call, int64_t i, int64_t t) {
  if (t >= 0) return call.gradients.dx.at(call.problem.sequences.begin[i] + t, 0);
  if (call.gradients.dinitial == nullptr) return nullptr;
  return call.gradients.dinitial[i] + (call.problem.width - 1 + t) * call.problem.channels;
}

/// Gradients of token t's sums, to `dsums`, and what they give to the weights and the bias.
HWY_INLINE void backward_sums(const ConvolutionBackward& call, int64_t i, int64_t t, int64_t first,
                              int64_t count, float* dsums) {
  const ConvolutionProblem& problem = call.problem;
  const float* state = call.initial != nullptr ? call.initial[i] : nullptr;
  const float* dy = call.dy.at(problem.sequences.begin[i] + t, 0);
  for_each_vector(count, [&](int64_t offset, const auto& load, const auto& store) HWY_ATTR {
    const int64_t c = first + offset;
    const VecF32 sum = convolve(problem, call.x, state, call.taps, i, t, c, load);
    const VecF32 dsum = hn::Mul(load(dy + c), slope_of<GateFunction::kSilu>(sum));
    store(dsum, dsums + c);
    if (call.gradients.dbias != nullptr) {
      float* dbias = call.gradients.dbias + c;
      store(hn::Add(load(dbias), dsum), dbias);
    }
    for (int64_t w = 0; w < problem.width; ++w) {
      const float* row = input_row(problem, call.x, state, i, t - problem.width + 1 + w);
      if (row == nullptr) continue;
      float* dtap = call.dtaps + w * problem.channels + c;
      store(hn::MulAdd(dsum, load(row + c), load(dtap)), dtap);
    }
  });
}

/// Gradient of input t: it is tap w of token t + W − 1 − w, and it may be part of the final state.
/// `dsums` [W, channels] holds what backward_sums gave for tokens t … t + W − 1, each at its number
/// modulo W.
HWY_INLINE void backward_input(const ConvolutionBackward& call, int64_t i, int64_t t, int64_t first,
                               int64_t count, const float* dsums) {
  float* to = gradient_row(call, i, t);
  if (to == nullptr) return;
  const ConvolutionProblem& problem = call.problem;
  const int64_t kept = problem.width - 1;
  const int64_t length = problem.sequences.length[i];
  const int64_t place = t - (length - kept);
  const float* dfinal =
      call.dfinal != nullptr && place >= 0 ? call.dfinal[i] + place * problem.channels : nullptr;
  const int64_t begin = std::max<int64_t>(t, 0);
  const int64_t end = std::min(t + problem.width, length);
  const int64_t first_slot = begin % problem.width;
  for_each_vector(count, [&](int64_t offset, const auto& load, const auto& store) HWY_ATTR {
    const int64_t c = first + offset;
    VecF32 sum = dfinal != nullptr ? load(dfinal + c) : hn::Zero(F32());
    int64_t slot = first_slot;
    for (int64_t token = begin; token < end; ++token) {
      const float* dsum = dsums + slot * problem.channels;
      const float* tap = call.taps + (t + kept - token) * problem.channels;
      sum = hn::MulAdd(load(dsum + c), load(tap + c), sum);
      slot = slot + 1 < problem.width ? slot + 1 : 0;
    }
    store(sum, to + c);
  });
}

/// All channels of a token before the next token: rows are read as they lie in memory, and the sums
/// of a weight are far apart.
void backward_channels_impl(const ConvolutionBackward& call, int64_t first, int64_t count,
                            float* dsums) {
  const ConvolutionProblem& problem = call.problem;
  const int64_t kept = problem.width - 1;
  for (int64_t i = 0; i < problem.sequences.count; ++i) {
    const int64_t length = problem.sequences.length[i];
    for (int64_t t = 0; t < length + kept; ++t) {
      if (t < length) {
        float* row = dsums + t % problem.width * problem.channels;
        backward_sums(call, i, t, first, count, row);
      }
      backward_input(call, i, t - kept, first, count, dsums);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {
namespace {

HWY_EXPORT(forward_channels_impl);
HWY_EXPORT(backward_channels_impl);

const float* transposed(const ConvolutionProblem& problem, Arena& arena) {
  float* taps = arena.alloc<float>(problem.width * problem.channels);
  for (int64_t c = 0; c < problem.channels; ++c) {
    for (int64_t w = 0; w < problem.width; ++w) {
      taps[w * problem.channels + c] = problem.weight[c * problem.width + w];
    }
  }
  return taps;
}

int64_t block_count(int64_t channels) { return (channels + kBlockChannels - 1) / kBlockChannels; }

}  // namespace

void convolution_forward(const ConvolutionProblem& problem, Heads<const float> x,
                         float* const* state, Heads<float> y, Arena& arena) noexcept {
  ArenaScope scope(arena);
  const ConvolutionForward call{problem, x, state, y, transposed(problem, arena)};
  const auto body = [&call](int64_t begin, int64_t end, int) {
    const int64_t first = begin * kBlockChannels;
    const int64_t last = std::min(end * kBlockChannels, call.problem.channels);
    HWY_DYNAMIC_DISPATCH(forward_channels_impl)(call, first, last - first);
  };
  parallel_for(problem.pool, block_count(problem.channels), body);
}

void convolution_backward(const ConvolutionProblem& problem, Heads<const float> x,
                          const float* const* initial, Heads<const float> dy,
                          const float* const* dfinal, const ConvolutionGradients& gradients,
                          Arena& arena) noexcept {
  ArenaScope scope(arena);
  // Threads have channels of their own in it.
  float* dsums = arena.alloc<float>(problem.width * problem.channels);
  float* dtaps = arena.alloc<float>(problem.width * problem.channels);
  std::fill_n(dtaps, problem.width * problem.channels, 0.0f);
  const ConvolutionBackward call{
      problem, x, initial, dy, dfinal, gradients, transposed(problem, arena), dtaps};
  const auto body = [&](int64_t begin, int64_t end, int) {
    const int64_t last = std::min(end * kBlockChannels, problem.channels);
    for (int64_t first = begin * kBlockChannels; first < last; first += kMostChannels) {
      const int64_t count = std::min(kMostChannels, last - first);
      HWY_DYNAMIC_DISPATCH(backward_channels_impl)(call, first, count, dsums);
    }
  };
  parallel_for(problem.pool, block_count(problem.channels), body);
  for (int64_t c = 0; c < problem.channels; ++c) {
    for (int64_t w = 0; w < problem.width; ++w) {
      gradients.dweight[c * problem.width + w] += dtaps[w * problem.channels + c];
    }
  }
}

}  // namespace tarn::kernels
#endif
