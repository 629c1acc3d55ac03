#include "base/log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "base/check.h"

namespace tarn {
namespace {

std::mutex& sink_mutex() {
  static std::mutex mutex;
  return mutex;
}

LogSink& sink() {
  static LogSink instance = [](LogLevel level, std::string_view message) {
    if (level == LogLevel::kError) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(message.size()), message.data());
    }
  };
  return instance;
}

}  // namespace

void set_log_sink(LogSink new_sink) {
  std::lock_guard lock(sink_mutex());
  sink() = std::move(new_sink);
}

void log_message(LogLevel level, std::string_view message) {
  std::lock_guard lock(sink_mutex());
  if (sink()) sink()(level, message);
}

void check_failed(const char* expression, const char* file, int line) {
  log_message(LogLevel::kError, "broken invariant (a bug in Tarn): " + std::string(expression) +
                                    " at " + file + ":" + std::to_string(line));
  std::abort();
}

}  // namespace tarn
