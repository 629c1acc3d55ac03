#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tarn::serve {

/// More than kMaxStopStrings of them, one that is empty, longer than kMaxStopBytes or no UTF-8.
Status validate_stop_strings(const std::vector<std::string>& stop);

/// Finds stop strings in a stream of text, wherever its pieces are cut: text that could be the start
/// of one is held back until it is known.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  /// Adds `text` and appends to `out` what can be no part of a stop string any more; up to the stop
  /// string that ends first (of several, the longest) when there is one: then true, and the stream is
  /// at its end.
  bool push(std::string_view text, std::string* out);
  /// Appends what was held back: the stream ends without a stop string.
  void flush(std::string* out);
  /// Index of the string that was found, -1 before.
  int found() const { return found_; }

 private:
  std::vector<std::string> stop_;
  std::string held_;
  int found_ = -1;
};

}  // namespace tarn::serve
