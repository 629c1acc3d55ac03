#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace tarn {

/// XXH3-64 of a byte range.
uint64_t xxh3_64(const void* data, int64_t bytes);

/// XXH3-128 of a byte range, starting from `seed`: 16 bytes, high half first, each big-endian.
std::array<uint8_t, 16> xxh3_128(const void* data, int64_t bytes, uint64_t seed = 0);

/// xxh3_64 over pieces.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  void update(const void* data, int64_t bytes);
  uint64_t digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarn
