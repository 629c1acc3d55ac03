#include "base/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>

namespace tarn {

uint64_t xxh3_64(const void* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
}

std::array<uint8_t, 16> xxh3_128(const void* data, int64_t bytes, uint64_t seed) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical,
                           XXH3_128bits_withSeed(data, static_cast<size_t>(bytes), seed));
  std::array<uint8_t, 16> digest;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), digest.begin());
  return digest;
}

struct Xxh3::Impl {
  XXH3_state_t* state = XXH3_createState();
  ~Impl() { XXH3_freeState(state); }
};

Xxh3::Xxh3() : impl_(std::make_unique<Impl>()) { XXH3_64bits_reset(impl_->state); }
Xxh3::~Xxh3() = default;
void Xxh3::update(const void* data, int64_t bytes) {
  XXH3_64bits_update(impl_->state, data, static_cast<size_t>(bytes));
}
uint64_t Xxh3::digest() const { return XXH3_64bits_digest(impl_->state); }

}  // namespace tarn
