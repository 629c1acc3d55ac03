#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace tarn {

/// XXH3-64 of a byte range.
uint64_t xxh3_64(const void* data, int64_t bytes);

/// The same over pieces.
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
