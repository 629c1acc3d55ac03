#pragma once

#include <cstdint>

namespace tarn::runtime {

/// The most resident memory this process has had, in bytes (VmHWM of /proc/self/status, else
/// getrusage), or -1.
int64_t peak_resident_bytes();

/// The machine's physical memory, or less where the process may not have as many addresses (ulimit
/// -v); INT64_MAX where the system does not say.
int64_t machine_memory_bytes();

/// Starts peak_resident_bytes() anew from what is resident now; false where the system cannot.
bool reset_peak_resident();

}  // namespace tarn::runtime
