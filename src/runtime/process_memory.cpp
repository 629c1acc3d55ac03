#include "runtime/process_memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace tarn::runtime {
namespace {

/// Content of a small /proc file, "" when it cannot be read.
std::string read_proc(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text(8192, '\0');
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

}  // namespace

int64_t peak_resident_bytes() {
  const std::string status = read_proc("/proc/self/status");
  const size_t at = status.find("VmHWM:");
  if (at != std::string::npos) return std::strtoll(status.c_str() + at + 6, nullptr, 10) * 1024;
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return -1;
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

int64_t machine_memory_bytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  const int64_t physical = pages > 0 && page_bytes > 0 ? pages * page_bytes : INT64_MAX;
  struct rlimit allowed;
  if (getrlimit(RLIMIT_AS, &allowed) != 0 || allowed.rlim_cur >= static_cast<rlim_t>(physical)) {
    return physical;
  }
  return static_cast<int64_t>(allowed.rlim_cur);
}

bool reset_peak_resident() {
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool done = write(file, "5", 1) == 1;
  close(file);
  return done;
}

}  // namespace tarn::runtime
