#include "base/buffer.h"

#include <sys/mman.h>

#include "base/check.h"

namespace tarn {

void* allocate_aligned(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const bool huge = bytes >= 2 * kHugePage;
  const size_t alignment = huge ? kHugePage : kAlignment;
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  TARN_CHECK(memory != nullptr);
  // Advice only: without huge pages everything works, slower.
  if (huge) static_cast<void>(madvise(memory, rounded, MADV_HUGEPAGE));
  return memory;
}

}  // namespace tarn
