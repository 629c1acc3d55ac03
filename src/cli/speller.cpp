#include "cli/speller.h"

#include <algorithm>

namespace tarn::cli {
namespace {

bool is_one_character(const std::string& name) {
  return std::count_if(name.begin(), name.end(), [](char c) { return (c & 0xc0) != 0x80; }) == 1;
}

}  // namespace

Speller::Speller(const std::vector<std::string>& symbols)
    : symbols_(symbols),
      spaced_(symbols.empty() || !std::all_of(symbols.begin(), symbols.end(), is_one_character)) {}

std::string Speller::spell(std::span<const int32_t> labels) {
  std::string text;
  for (const int32_t label : labels) {
    if (spaced_ && !first_) text += " ";
    first_ = false;
    const auto index = static_cast<size_t>(label) - 1;
    text += index < symbols_.size() ? symbols_[index] : std::to_string(label);
  }
  return text;
}

}  // namespace tarn::cli
