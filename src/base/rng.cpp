#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace tarn {

std::array<uint32_t, 4> philox_block(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

uint32_t Philox::next_u32() {
  const uint64_t block = index / 4;
  const auto words =
      philox_block({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                    static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return words[index++ % 4];
}

float Philox::next_uniform() { return static_cast<float>(next_u32() >> 8) * 0x1p-24f; }

float Philox::next_open_uniform() {
  return (static_cast<float>(next_u32() >> 9) + 0.5f) * 0x1p-23f;
}

float Philox::next_normal() {
  const double radius = std::sqrt(-2.0 * std::log(static_cast<double>(next_open_uniform())));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(next_uniform());
  return static_cast<float>(radius * std::cos(angle));
}

uint32_t Philox::next_below(uint32_t bound) {
  return static_cast<uint32_t>((uint64_t{next_u32()} * bound) >> 32);
}

}  // namespace tarn
