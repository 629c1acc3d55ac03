#include "kernels/cpu/roof_probes.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <array>
#endif

namespace tarn::kernels {

#if defined(__x86_64__)

namespace {

// As in roof.cpp: enough chains to hide the latency, each from a start of its own, since chains
// that are known to be equal become one; loops this short are unrolled whole.
constexpr int kChains = 12;

__attribute__((target("avx512f,avx512bf16"))) double run_avx512_bf16(int64_t iterations) noexcept {
  volatile int hidden = 0x3f803f80;  // two bf16 ones, unknown to the compiler
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(hidden));
  volatile float start = 0;
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(start);
  for (int64_t n = 0; n < iterations; ++n) {
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, ones, ones);
  }
  double total = 0;
  for (const __m512& sum : sums) {
    alignas(64) std::array<float, 16> lanes;
    _mm512_store_ps(lanes.data(), sum);
    for (float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

__attribute__((target("avx512f,avx512vnni"))) double run_avx512_vnni(int64_t iterations) noexcept {
  volatile int hidden = 0x01010101;
  const __m512i ones = _mm512_set1_epi32(hidden);
  volatile int start = 0;
  __m512i sums[kChains];
  for (__m512i& sum : sums) sum = _mm512_set1_epi32(start);
  for (int64_t n = 0; n < iterations; ++n) {
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, ones, ones);
  }
  double total = 0;
  for (const __m512i& sum : sums) {
    alignas(64) std::array<int32_t, 16> lanes;
    _mm512_store_si512(lanes.data(), sum);
    for (int32_t lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

__attribute__((target("avx2,avxvnni"))) double run_avx_vnni(int64_t iterations) noexcept {
  volatile int hidden = 0x01010101;
  const __m256i ones = _mm256_set1_epi32(hidden);
  volatile int start = 0;
  __m256i sums[kChains];
  for (__m256i& sum : sums) sum = _mm256_set1_epi32(start);
  for (int64_t n = 0; n < iterations; ++n) {
    for (__m256i& sum : sums) sum = _mm256_dpbusd_avx_epi32(sum, ones, ones);
  }
  double total = 0;
  for (const __m256i& sum : sums) {
    alignas(32) std::array<int32_t, 8> lanes;
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes.data()), sum);
    for (int32_t lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAvxVnni = 1u << 4;
  return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAvxVnni) != 0;
}

}  // namespace

ProbeLoop bf16_dot_probe() {
  if (__builtin_cpu_supports("avx512bf16")) return {"AVX512_BF16", run_avx512_bf16};
  return {};
}

ProbeLoop int8_dot_probe() {
  if (__builtin_cpu_supports("avx512vnni")) return {"AVX512_VNNI", run_avx512_vnni};
  if (has_avx_vnni()) return {"AVX_VNNI", run_avx_vnni};
  return {};
}

#else

ProbeLoop bf16_dot_probe() { return {}; }
ProbeLoop int8_dot_probe() { return {}; }

#endif

}  // namespace tarn::kernels
