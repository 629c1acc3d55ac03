#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tarn::serve::load {

/// Splits the bytes of an event stream into the data of its events: lines of "data:" joined by line
/// feeds. Comments and other fields are dropped, as are events without data. Memory: one event.
class EventReader {
 public:
  using OnEvent = std::function<void(std::string_view data)>;

  void put(std::string_view bytes, const OnEvent& on_event);
  /// Nothing of an unfinished event is left.
  bool clean() const { return line_.empty() && !has_data_; }

 private:
  void take_line(std::string_view line, const OnEvent& on_event);

  std::string line_;  // as far as it has come
  std::string data_;
  bool has_data_ = false;
};

}  // namespace tarn::serve::load
