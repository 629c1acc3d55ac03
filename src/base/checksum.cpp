#include "base/checksum.h"

#include <xxhash.h>

namespace tarn {

uint64_t xxh3_64(const void* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
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
