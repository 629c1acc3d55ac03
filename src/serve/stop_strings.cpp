#include "serve/stop_strings.h"

#include <algorithm>

#include "runtime/utf8.h"
#include "serve/request.h"

namespace tarn::serve {

namespace {

bool is_utf8(const std::string& text) {
  runtime::Utf8Stream stream;
  std::string valid;
  for (const char c : text) stream.push(static_cast<uint8_t>(c), &valid);
  stream.flush(&valid);
  return valid == text;
}

}  // namespace

Status validate_stop_strings(const std::vector<std::string>& stop) {
  if (stop.size() > kMaxStopStrings) {
    return invalid_argument("there are " + std::to_string(stop.size()) + ", at most " +
                                std::to_string(kMaxStopStrings) + " are allowed",
                            "stop");
  }
  for (size_t i = 0; i < stop.size(); ++i) {
    const std::string where = "stop[" + std::to_string(i) + "]";
    if (stop[i].empty() || stop[i].size() > kMaxStopBytes) {
      return invalid_argument("has " + std::to_string(stop[i].size()) + " bytes, must have 1 to " +
                                  std::to_string(kMaxStopBytes),
                              where);
    }
    if (!is_utf8(stop[i])) return invalid_argument("is not valid UTF-8", where);
  }
  return {};
}

bool StopStrings::push(std::string_view text, std::string* out) {
  if (stop_.empty()) {
    out->append(text);
    return false;
  }
  held_.append(text);
  size_t first = 0, first_end = std::string::npos;
  for (size_t i = 0; i < stop_.size(); ++i) {
    const size_t at = held_.find(stop_[i]);
    if (at == std::string::npos) continue;
    // By its end: another cut would have told nothing of a longer one by then.
    const size_t end = at + stop_[i].size();
    if (end > first_end || (end == first_end && at >= first)) continue;
    first = at;
    first_end = end;
    found_ = static_cast<int>(i);
  }
  if (found_ >= 0) {
    out->append(held_, 0, first);
    held_.clear();
    return true;
  }
  size_t keep = 0;
  for (const std::string& stop : stop_) {
    size_t size = std::min(stop.size() - 1, held_.size());
    while (size > keep && !held_.ends_with(std::string_view(stop).substr(0, size))) --size;
    keep = std::max(keep, size);
  }
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopStrings::flush(std::string* out) {
  out->append(held_);
  held_.clear();
}

}  // namespace tarn::serve
