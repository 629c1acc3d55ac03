// The selective scan of one block of channels, compiled once per target.
#if defined(TARN_KERNELS_CPU_SELECTIVE_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TARN_KERNELS_CPU_SELECTIVE_SCAN_INL_H_
#undef TARN_KERNELS_CPU_SELECTIVE_SCAN_INL_H_
#else
#define TARN_KERNELS_CPU_SELECTIVE_SCAN_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/channel_blocks-inl.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/diagonal_scan.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

/// A block's parameters, [planes][kBlock].
struct SelectiveBlock {
  int64_t state_dim = 0;
  float* a = nullptr;  ///< A·log2 e
  float* d = nullptr;

  void load(const SelectiveScanInputs<float>& inputs, int64_t channel, int64_t count) const {
    load_planes(inputs.a, state_dim, channel, count, a);
    for (int64_t i = 0; i < state_dim * kBlock; ++i) a[i] *= kLog2E;
    load_planes(inputs.d, 1, channel, count, d);
  }
};

/// Tokens of a block: x, delta [tokens][kBlock]; rows of B and C from `row` on.
struct SelectiveTokens {
  int64_t row = 0;
  int64_t count = 0;
  const float* x = nullptr;
  const float* delta = nullptr;
  Upcoming upcoming[5] = {};  ///< rows fetched meanwhile
};

/// Passes tokens through the state h [N][kBlock]. With kKeep, states are kept instead of outputs:
/// h is [tokens + 1][N][kBlock] and its first entry given, decay [tokens][N][kBlock] receives
/// exp(δ·A); without, y [tokens][kBlock] is written.
template <bool kKeep>
HWY_NOINLINE void selective_scan_block(const SelectiveBlock& block,
                                       const SelectiveScanInputs<float>& inputs,
                                       const SelectiveTokens& tokens, float* HWY_RESTRICT h,
                                       float* HWY_RESTRICT decay, float* HWY_RESTRICT y) {
  const F32 d;
  const int64_t N = block.state_dim;
  const int64_t next = kKeep ? N * kBlock : 0;
  for (int64_t t = 0; t < tokens.count; ++t) {
    const float* b = inputs.b.at(tokens.row + t);
    const float* c = inputs.c.at(tokens.row + t);
    for (const Upcoming& rows : tokens.upcoming) rows.prefetch(t);
    VecF32 delta[kBlockVectors], write[kBlockVectors], sum[kBlockVectors];
    TARN_UNROLL
    for (int v = 0; v < kBlockVectors; ++v) {
      const VecF32 x = hn::Load(d, tokens.x + t * kBlock + v * kLanes);
      delta[v] = hn::Load(d, tokens.delta + t * kBlock + v * kLanes);
      write[v] = hn::Mul(delta[v], x);
      sum[v] = hn::Mul(x, hn::Load(d, block.d + v * kLanes));
    }
    for (int64_t n = 0; n < N; ++n) {
      const VecF32 vb = hn::Set(d, b[n]);
      const VecF32 vc = hn::Set(d, c[n]);
      float* state = h + n * kBlock;
      TARN_UNROLL
      for (int v = 0; v < kBlockVectors; ++v) {
        const VecF32 factor =
            exp2_product(delta[v], hn::Load(d, block.a + n * kBlock + v * kLanes));
        const VecF32 value =
            hn::MulAdd(factor, hn::Load(d, state + v * kLanes), hn::Mul(write[v], vb));
        hn::Store(value, d, state + next + v * kLanes);
        if constexpr (kKeep) {
          hn::Store(factor, d, decay + n * kBlock + v * kLanes);
        } else {
          sum[v] = hn::MulAdd(vc, value, sum[v]);
        }
      }
    }
    if constexpr (kKeep) {
      h += next;
      decay += next;
    } else {
      TARN_UNROLL
      for (int v = 0; v < kBlockVectors; ++v) {
        hn::Store(sum[v], d, y + t * kBlock + v * kLanes);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#endif  // TARN_KERNELS_CPU_SELECTIVE_SCAN_INL_H_
