#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace tarn {

inline constexpr size_t kAlignment = 64;  ///< bytes; one cache line, one AVX-512 vector

/// At least `bytes` bytes, aligned to kAlignment; free() returns them. From a few MiB on they ask
/// the kernel for huge pages: rows of one head lie far apart, and small pages would cost a
/// translation for every other row. When memory is exhausted: std::get_new_handler(), or abort.
void* allocate_aligned(size_t bytes);

/// Owning, 64-byte aligned array of trivially copyable elements; not initialised on allocation.
/// Move-only: copying one is spelled `clone()` so that its cost shows.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  /// Allocates `size` elements, rounded up to whole cache lines. Ends the program when memory is exhausted:
  /// sizes that come from outside are checked against limits before they reach here.
  explicit Buffer(int64_t size) : size_(size) {
    if (size > 0) {
      data_.reset(static_cast<T*>(allocate_aligned(static_cast<size_t>(size) * sizeof(T))));
    }
  }
  static Buffer filled(int64_t size, T value) {
    Buffer buffer(size);
    for (T& element : buffer.span()) element = value;
    return buffer;
  }
  Buffer clone() const {
    Buffer copy(size_);
    for (int64_t i = 0; i < size_; ++i) copy.data_.get()[i] = data_.get()[i];
    return copy;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  int64_t size_bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  std::span<T> span() { return {data_.get(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data_.get(), static_cast<size_t>(size_)}; }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<T[], Free> data_;
  int64_t size_ = 0;
};

}  // namespace tarn
