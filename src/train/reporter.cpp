#include "train/reporter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace tarn::train {

Result<Reporter> Reporter::open(const std::string& log_path, int64_t keep_bytes, bool json_stdout) {
  Reporter reporter;
  reporter.log_ = std::fopen(log_path.c_str(), "ab");
  if (reporter.log_ == nullptr || ftruncate(fileno(reporter.log_), keep_bytes) != 0) {
    return Error{ErrorCode::kIo, std::string("cannot write the log: ") + std::strerror(errno),
                 log_path};
  }
  reporter.log_bytes_ = keep_bytes;
  reporter.json_stdout_ = json_stdout;
  reporter.is_terminal_ = isatty(STDERR_FILENO) != 0;
  return reporter;
}

Reporter::Reporter(Reporter&& other) noexcept
    : log_(std::exchange(other.log_, nullptr)),
      log_bytes_(other.log_bytes_),
      json_stdout_(other.json_stdout_),
      is_terminal_(other.is_terminal_),
      bar_is_open_(std::exchange(other.bar_is_open_, false)) {}

Reporter::~Reporter() {
  finish();
  if (log_ != nullptr) std::fclose(log_);
}

void Reporter::event(const Json& json) {
  const std::string line = json.dump() + "\n";
  std::fwrite(line.data(), 1, line.size(), log_);
  std::fflush(log_);
  log_bytes_ += static_cast<int64_t>(line.size());
  if (json_stdout_) {
    std::fwrite(line.data(), 1, line.size(), stdout);
    std::fflush(stdout);
  }
}

void Reporter::progress(int64_t update, int64_t updates, const std::string& bits,
                        double tokens_per_second, double seconds_left) {
  const std::string state = fmt::format("{}/{}  {}  {:.1f}k tokens/s  ETA {}", update, updates,
                                        bits, tokens_per_second / 1000.0, duration(seconds_left));
  if (is_terminal_) {
    constexpr int64_t kWidth = 24;
    const auto filled = static_cast<size_t>(kWidth * update / std::max<int64_t>(1, updates));
    fmt::print(stderr, "\r\x1b[K[{}{}] {}", std::string(filled, '#'),
               std::string(kWidth - filled, '.'), state);
    bar_is_open_ = true;
  } else {
    fmt::print(stderr, "update {}\n", state);
  }
  std::fflush(stderr);
}

void Reporter::note(const std::string& text) {
  finish();
  fmt::print(stderr, "{}\n", text);
}

void Reporter::finish() {
  if (bar_is_open_) fmt::print(stderr, "\n");
  bar_is_open_ = false;
}

std::string duration(double seconds) {
  const auto total = static_cast<int64_t>(std::max(0.0, seconds));
  const int64_t hours = total / 3600;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, total / 60 % 60, total % 60);
  return fmt::format("{}:{:02}", total / 60, total % 60);
}

}  // namespace tarn::train
