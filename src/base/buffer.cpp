#include "base/buffer.h"

#include <sys/mman.h>

#include <new>
#include <string>

#include "base/log.h"

namespace tarn {
namespace {

/// What operator new does: the handler that the program has set, if any, does not return.
[[noreturn]] void out_of_memory(size_t bytes) {
  if (const std::new_handler handler = std::get_new_handler()) handler();
  log_message(LogLevel::kError, "out of memory: wanted " + std::to_string(bytes) + " bytes");
  std::abort();
}

}  // namespace

void* allocate_aligned(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const bool huge = bytes >= 2 * kHugePage;
  const size_t alignment = huge ? kHugePage : kAlignment;
  const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) out_of_memory(bytes);
  // Advice only: without huge pages everything works, slower.
  if (huge) static_cast<void>(madvise(memory, rounded, MADV_HUGEPAGE));
  return memory;
}

}  // namespace tarn
