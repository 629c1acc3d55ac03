#pragma once

#include <cstdint>
#include <vector>

#include "base/buffer.h"

namespace tarn {

/// Bump allocator for scratch memory of one call: blocks are kept between calls, so a steady
/// workload allocates nothing. Threads: one owner at a time.
class Arena {
 public:
  /// `size` uninitialised, 64-byte aligned elements, valid until the enclosing scope rewinds.
  template <class T>
  T* alloc(int64_t size) {
    return reinterpret_cast<T*>(alloc_bytes(size * static_cast<int64_t>(sizeof(T))));
  }

  /// Bytes held from the system, used or not.
  int64_t capacity_bytes() const;

  struct Mark {
    size_t block = 0;
    int64_t offset = 0;
  };
  Mark mark() const { return {block_, offset_}; }
  void rewind(Mark mark) {
    block_ = mark.block;
    offset_ = mark.offset;
  }

 private:
  char* alloc_bytes(int64_t bytes);

  std::vector<Buffer<char>> blocks_;
  size_t block_ = 0;    // index of the block in use
  int64_t offset_ = 0;  // first free byte in it
};

/// Returns everything allocated during its life to the arena.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace tarn
