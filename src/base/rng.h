#pragma once

#include <array>
#include <cstdint>

namespace tarn {

/// Counter-based generator Philox4x32-10 (Salmon et al., SC 2011): a pure function of
/// (seed, stream, index). Each sequence owns a stream, so its draws do not depend on batch mates
/// or threads; the state in a snapshot is three integers.
struct Philox {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t index = 0;  ///< number of 32-bit words drawn so far

  /// The next 32 random bits.
  uint32_t next_u32();
  /// Uniform in [0, 1) with 24 bits.
  float next_uniform();
  /// Uniform in (0, 1): never 0 nor 1, safe under log and logit.
  float next_open_uniform();
  /// Standard normal by Box-Muller; consumes two words.
  float next_normal();
  /// Uniform integer in [0, bound), bound > 0, by multiply-shift (bias < bound / 2^32).
  uint32_t next_below(uint32_t bound);
};

/// The raw block function: 4 words for a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> philox_block(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace tarn
