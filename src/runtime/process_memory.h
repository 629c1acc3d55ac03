#pragma once

#include <cstdint>

namespace tarn::runtime {

/// The most resident memory this process has had, in bytes (VmHWM of /proc/self/status, else
/// getrusage), or -1.
int64_t peak_resident_bytes();

/// Starts peak_resident_bytes() anew from what is resident now; false where the system cannot.
bool reset_peak_resident();

}  // namespace tarn::runtime
