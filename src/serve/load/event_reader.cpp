#include "serve/load/event_reader.h"

namespace tarn::serve::load {

void EventReader::put(std::string_view bytes, const OnEvent& on_event) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      line_ += bytes;
      return;
    }
    line_ += bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    take_line(line_, on_event);
    line_.clear();
  }
}

void EventReader::take_line(std::string_view line, const OnEvent& on_event) {
  constexpr std::string_view kField = "data:";
  if (line.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
  } else if (line.starts_with(kField)) {
    line.remove_prefix(kField.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
}

}  // namespace tarn::serve::load
