#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tarn::cli {

/// Where a command prints. Results go to stdout: JSON and nothing else with --json, text for people
/// otherwise. Progress goes to stderr: a bar on a terminal, a plain line now and then elsewhere.
class Console {
 public:
  explicit Console(bool json);

  bool json() const { return json_; }
  /// One JSON document, or one line of JSON lines; printed only with --json.
  void document(const Json& json);
  void line(const Json& json);
  /// Text for people with a newline; printed only without --json.
  void text(std::string_view text);
  /// Aligned columns under a heading row: the first to the left, the others to the right.
  void table(const std::vector<std::vector<std::string>>& rows);
  /// Text without a newline, at once: generated characters as they come.
  void stream(std::string_view text);

  /// `done` of `total` `unit`; call it as often as it changes.
  void progress(const char* label, int64_t done, int64_t total, const char* unit);
  /// Removes the bar; call it before printing results.
  void end_progress();

  /// The one sentence of a failed command, to stderr, and with --json as an object to stdout.
  void error(const Error& error);
  /// "tarn: " and one line on stderr, whatever bytes `text` has. No print function throws.
  void sentence(const std::string& text);
  /// False when stdout could not be written (disk full).
  bool flush();

 private:
  using Clock = std::chrono::steady_clock;
  bool json_ = false;
  bool terminal_ = false;
  bool bar_shown_ = false;
  const char* label_ = nullptr;
  Clock::time_point started_, printed_;
};

/// What "error" holds in JSON: {"code", "message", "where"}.
Json error_json(std::string_view code, std::string_view message, std::string_view where);

/// "1.4 KiB", "3.2 MiB" …
std::string bytes_text(int64_t bytes);

/// Milliseconds: "12.3450", and below 0.01 to the nanosecond: "0.001234".
std::string ms_text(double ms);

}  // namespace tarn::cli
