#pragma once

#include <functional>
#include <string_view>

namespace tarn {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Where library code sends its messages: it never prints by itself.
using LogSink = std::function<void(LogLevel, std::string_view)>;

/// Replaces the process-wide sink (default: drops everything below kError, writes the rest to
/// stderr). Call it once at start-up; it is not meant to change while threads log.
void set_log_sink(LogSink sink);

/// Sends one message to the sink. Threads: safe.
void log_message(LogLevel level, std::string_view message);

}  // namespace tarn
