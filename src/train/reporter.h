#pragma once

#include <cstdio>
#include <string>

#include "base/json.h"
#include "base/result.h"

namespace tarn::train {

/// Where a training run tells what happens: every event goes to the JSON-lines log file, and to
/// stdout when machines asked for it; people get a progress bar on a terminal, plain lines
/// elsewhere (both on stderr).
class Reporter {
 public:
  /// Opens `log_path` and cuts it to its first `keep_bytes` bytes (what a checkpoint covers).
  static Result<Reporter> open(const std::string& log_path, int64_t keep_bytes, bool json_stdout);
  Reporter(Reporter&& other) noexcept;
  Reporter& operator=(Reporter&&) = delete;
  ~Reporter();

  /// Appends one line to the log (and stdout).
  void event(const Json& json);
  /// The state of training: updates done of `updates`, bits with their unit, rates.
  void progress(int64_t update, int64_t updates, const std::string& bits, double tokens_per_second,
                double seconds_left);
  /// A line of its own for people.
  void note(const std::string& text);
  /// Ends the progress bar's line.
  void finish();
  /// Bytes in the log file so far, all of them flushed to the operating system.
  int64_t log_bytes() const { return log_bytes_; }

 private:
  Reporter() = default;
  std::FILE* log_ = nullptr;
  int64_t log_bytes_ = 0;
  bool json_stdout_ = false;
  bool is_terminal_ = false;
  bool bar_is_open_ = false;
};

/// "1:02:03" or "2:03".
std::string duration(double seconds);

}  // namespace tarn::train
