#include "kernels/roof.h"

#include "kernels/cpu/roof_probes.h"
#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/roof.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels::HWY_NAMESPACE {

/// Accumulators in flight: more than latency times instructions per cycle on every CPU so far, and
/// few enough for 16 registers.
constexpr int kChains = 12;

/// Sum of the lanes in double precision.
template <class D>
double lane_sum(D d, hn::Vec<D> values) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(values, d, lanes);
  double sum = 0;
  for (const auto lane : lanes) sum += static_cast<double>(lane);
  return sum;
}

double f32_fma_impl(int64_t iterations) {
  const F32 d;
  volatile float hidden = 1.0f;
  const VecF32 one = hn::Set(d, hidden);
  const VecF32 other = hn::Set(d, hidden);
  // A read of its own for each chain: chains that are known to be equal become one.
  volatile float start = 0.0f;
  VecF32 sums[kChains];
  TARN_UNROLL for (int i = 0; i < kChains; ++i) sums[i] = hn::Set(d, start);
  for (int64_t n = 0; n < iterations; ++n) {
    TARN_UNROLL for (int i = 0; i < kChains; ++i) {
#if HWY_NATIVE_FMA
      sums[i] = hn::MulAdd(one, other, sums[i]);
#else
      // Without a fused instruction the product of constants would leave the loop.
      sums[i] = hn::MulAdd(sums[i], one, other);
#endif
    }
  }
  double total = 0;
  for (int i = 0; i < kChains; ++i) total += lane_sum(d, sums[i]);
  return total;
}

double read_impl(const uint32_t* data, int64_t count, int64_t passes) {
  constexpr int kStreams = 8;
  // Read anew in each pass: for all the compiler knows the address changes, so loads stay inside.
  const volatile int64_t zero = 0;
  const hn::ScalableTag<uint32_t> d;
  hn::Vec<decltype(d)> sums[kStreams];
  TARN_UNROLL for (int i = 0; i < kStreams; ++i) sums[i] = hn::Zero(d);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const uint32_t* from = data + zero;
    for (int64_t at = 0; at < count; at += kStreams * kLanes) {
      TARN_UNROLL for (int i = 0; i < kStreams; ++i) {
        sums[i] = hn::Add(sums[i], hn::Load(d, from + at + i * kLanes));
      }
    }
  }
  double total = 0;
  for (int i = 0; i < kStreams; ++i) total += lane_sum(d, sums[i]);
  return total;
}

void copy_impl(const float* from, int64_t count, float* to) {
  const F32 d;
  for (int64_t at = 0; at < count; at += 4 * kLanes) {
    TARN_UNROLL for (int64_t i = 0; i < 4; ++i) {
      hn::Stream(hn::Load(d, from + at + i * kLanes), d, to + at + i * kLanes);
    }
  }
  hwy::FlushStream();
}

void triad_impl(const float* a, const float* b, float scale, int64_t count, float* out) {
  const F32 d;
  const VecF32 factor = hn::Set(d, scale);
  for (int64_t at = 0; at < count; at += 4 * kLanes) {
    TARN_UNROLL for (int64_t i = 0; i < 4; ++i) {
      const int64_t j = at + i * kLanes;
      hn::Stream(hn::MulAdd(hn::Load(d, b + j), factor, hn::Load(d, a + j)), d, out + j);
    }
  }
  hwy::FlushStream();
}

}  // namespace tarn::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tarn::kernels {

HWY_EXPORT(f32_fma_impl);
HWY_EXPORT(read_impl);
HWY_EXPORT(copy_impl);
HWY_EXPORT(triad_impl);

namespace {

double run_f32_fma(int64_t iterations) noexcept {
  return HWY_DYNAMIC_DISPATCH(f32_fma_impl)(iterations);
}

/// Name of the target that dispatch takes.
const char* target_name() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

}  // namespace

std::vector<ArithmeticProbe> arithmetic_probes() {
  const ProbeLoop bf16 = bf16_dot_probe();
  const ProbeLoop int8 = int8_dot_probe();
  const ProbeLoop bf16_tiles = bf16_amx_probe();
  const ProbeLoop int8_tiles = int8_amx_probe();
  return {{"f32_fma", "GFLOP/s", target_name(), run_f32_fma},
          {"bf16_dot", "GFLOP/s", bf16.instructions, bf16.run},
          {"int8_dot", "GOP/s", int8.instructions, int8.run},
          {"bf16_amx", "GFLOP/s", bf16_tiles.instructions, bf16_tiles.run},
          {"int8_amx", "GOP/s", int8_tiles.instructions, int8_tiles.run}};
}

double read_probe(const uint32_t* data, int64_t count, int64_t passes) noexcept {
  return HWY_DYNAMIC_DISPATCH(read_impl)(data, count, passes);
}

void copy_probe(const float* from, int64_t count, float* to) noexcept {
  HWY_DYNAMIC_DISPATCH(copy_impl)(from, count, to);
}

void triad_probe(const float* a, const float* b, float scale, int64_t count, float* out) noexcept {
  HWY_DYNAMIC_DISPATCH(triad_impl)(a, b, scale, count, out);
}

}  // namespace tarn::kernels
#endif
