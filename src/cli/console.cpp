#include "cli/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace tarn::cli {
namespace {

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr std::chrono::seconds kLineInterval{10};
constexpr int kBarWidth = 24;

/// Columns that text takes on a terminal: continuation bytes of UTF-8 take none.
size_t text_width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

/// Names from files and arguments must neither break the line nor steer the terminal.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return text;
}

/// Never throws, so that a failure can be reported while streams are closed or full: stdout
/// remembers a failed write until flush(), and on stderr there is nobody left to tell.
void print(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

}  // namespace

Console::Console(bool json) : json_(json), terminal_(isatty(STDERR_FILENO) != 0) {}

void Console::document(const Json& json) {
  if (json_) print(stdout, json.dump(2) + "\n");
}

void Console::line(const Json& json) {
  if (!json_) return;
  print(stdout, json.dump() + "\n");
  std::fflush(stdout);
}

void Console::text(std::string_view text) {
  if (!json_) print(stdout, std::string(text) + "\n");
}

void Console::stream(std::string_view text) {
  if (json_) return;
  print(stdout, text);
  std::fflush(stdout);
}

void Console::table(const std::vector<std::vector<std::string>>& rows) {
  if (json_) return;
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], text_width(row[i]));
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - text_width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? row[i] + pad : pad + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    print(stdout, line + "\n");
  }
}

void Console::progress(const char* label, int64_t done, int64_t total, const char* unit) {
  const Clock::time_point now = Clock::now();
  if (label_ != label) {
    label_ = label;
    started_ = now;
    printed_ = now;
    return;
  }
  if (now - printed_ < (terminal_ ? Clock::duration(kBarInterval) : Clock::duration(kLineInterval)))
    return;
  printed_ = now;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-9);
  const double part = static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, total));
  const double left = done > 0 ? seconds * (1 - part) / std::max(part, 1e-9) : 0;
  const std::string figures =
      fmt::format("{:3.0f}%  {:.4g} {}/s  ETA {:.0f} s", 100 * part, rate, unit, left);
  if (terminal_) {
    const int filled = static_cast<int>(part * kBarWidth);
    print(stderr, fmt::format("\r\033[K{} [{:#>{}}{:.>{}}] {}", label, "", filled, "",
                              kBarWidth - filled, figures));
    bar_shown_ = true;
  } else {
    print(stderr, fmt::format("{}: {}\n", label, figures));
  }
  std::fflush(stderr);
}

void Console::end_progress() {
  if (bar_shown_) print(stderr, "\r\033[K");
  bar_shown_ = false;
  label_ = nullptr;
}

void Console::error(const Error& error) {
  end_progress();
  sentence(error.to_string());
  if (!json_) return;
  Json outer;
  outer.set("error", error_json(error_code_name(error.code), error.message, error.where));
  line(outer);
}

void Console::sentence(const std::string& text) { print(stderr, "tarn: " + one_line(text) + "\n"); }

bool Console::flush() { return std::fflush(stdout) == 0 && std::ferror(stdout) == 0; }

Json error_json(std::string_view code, std::string_view message, std::string_view where) {
  Json json;
  json.set("code", code);
  json.set("message", message);
  json.set("where", where);
  return json;
}

std::string ms_text(double ms) { return fmt::format("{:.{}f}", ms, ms < 0.01 ? 6 : 4); }

std::string bytes_text(int64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace tarn::cli
