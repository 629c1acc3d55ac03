#pragma once

#include <cstdint>
#include <vector>

namespace tarn::kernels {

/// The most iterations of one call of ArithmeticProbe::run: beyond them f32 sums would round.
inline constexpr int64_t kMaxProbeIterations = int64_t{1} << 19;

/// A loop of multiply-adds on operands in registers: what this CPU's arithmetic does at most.
struct ArithmeticProbe {
  const char* kind;          ///< "f32_fma", "bf16_dot", "int8_dot", "bf16_amx", "int8_amx"
  const char* unit;          ///< "GFLOP/s", for integers "GOP/s": a multiply-add counts as two
  const char* instructions;  ///< e.g. "AVX512_BF16"; null where CPU, system or build lack them
  /// Runs the loop, 0 <= iterations <= kMaxProbeIterations, and returns the multiply-adds done. Every
  /// operand is 1, so the accumulators' sum is their number: the loop counts itself. Null without
  /// instructions. Threads: each caller on its own.
  double (*run)(int64_t iterations) noexcept;
};

/// The probes of every kind, in the order above; those that this machine lacks have null members.
/// Asking for AMX asks the system to let this process use its tiles.
std::vector<ArithmeticProbe> arithmetic_probes();

/// Elements that the sizes of the memory probes must be multiples of.
inline constexpr int64_t kProbeBlock = 256;

/// Reads `data` `passes` times. Returns the sum of what was read: with every element 1, `count` times
/// `passes`, so that 4 times the result is the bytes read. `data` is 64-byte aligned.
double read_probe(const uint32_t* data, int64_t count, int64_t passes) noexcept;
/// to = from. Moves 8·count bytes: the stores bypass the caches, so no line of `to` is read first.
/// Pointers are 64-byte aligned.
void copy_probe(const float* from, int64_t count, float* to) noexcept;
/// out = a + scale·b; moves 12·count bytes, as copy_probe does.
void triad_probe(const float* a, const float* b, float scale, int64_t count, float* out) noexcept;

}  // namespace tarn::kernels
