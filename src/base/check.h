#pragma once

namespace tarn {

/// Reports a broken invariant (a bug of ours, never bad input) to the log sink and aborts.
[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace tarn

/// Invariant that holds in every build; no byte from outside may make it false.
#define TARN_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::tarn::check_failed(#condition, __FILE__, __LINE__))

/// The same for inner loops: checked only in debug builds.
#ifdef NDEBUG
#define TARN_DCHECK(condition) static_cast<void>(0)
#else
#define TARN_DCHECK(condition) TARN_CHECK(condition)
#endif
