#include "report/records.h"

#include <fmt/format.h>

#include <cmath>

#include "base/file.h"

namespace tarn::report {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() &&
         std::string_view(text).substr(text.size() - end.size()) == end;
}

Result<std::vector<Json>> parse_lines(const std::string& text, const std::string& path) {
  std::vector<Json> records;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin);
    if (newline == std::string::npos) break;  // an unfinished last line
    ++number;
    const std::string_view line(text.data() + begin, newline - begin);
    begin = newline + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    TARN_ASSIGN(Json record, parse_json(line, fmt::format("{}: line {}", path, number)));
    records.push_back(std::move(record));
  }
  return records;
}

std::string group_thousands(std::string digits) {
  const size_t first = digits.find_first_of("0123456789");
  size_t end = digits.find_first_not_of("0123456789", first);
  if (end == std::string::npos) end = digits.size();
  for (size_t i = end; i > first + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string number_text(double value, int digits) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size >= 1e12 || size < 1e-4) return fmt::format("{:.{}e}", value, digits - 1);
  const int before = static_cast<int>(std::floor(std::log10(size))) + 1;
  return group_thousands(fmt::format("{:.{}f}", value, std::max(0, digits - before)));
}

}  // namespace

Result<std::vector<Json>> read_records(const std::string& path) {
  TARN_ASSIGN(const std::string text, read_file(path, kMaxFileBytes));
  if (ends_with(path, ".jsonl")) return parse_lines(text, path);
  TARN_ASSIGN(Json document, parse_json(text, path));
  const Json* rows = document.find("rows");
  if (rows == nullptr) return std::vector<Json>{std::move(document)};
  if (rows->as_array() == nullptr) {
    return invalid_argument(fmt::format("\"rows\" must be an array, got {}", rows->type_name()),
                            path);
  }
  return *rows->as_array();
}

const Json* find_path(const Json& object, const std::string& dotted) {
  const Json* at = &object;
  for (size_t begin = 0; at != nullptr && begin <= dotted.size();) {
    const size_t dot = std::min(dotted.find('.', begin), dotted.size());
    at = at->find(std::string_view(dotted).substr(begin, dot - begin));
    begin = dot + 1;
  }
  return at;
}

bool as_number(const Json* value, double& number) {
  if (value == nullptr) return false;
  if (const int64_t* integer = value->as_int()) {
    number = static_cast<double>(*integer);
    return true;
  }
  if (const double* real = value->as_double()) {
    number = *real;
    return true;
  }
  return false;
}

std::string cell_text(const Json* value, int digits) {
  if (value == nullptr || value->is_null()) return "–";
  if (const std::string* text = value->as_string()) return *text;
  if (const bool* flag = value->as_bool()) return *flag ? "yes" : "no";
  if (const int64_t* integer = value->as_int()) return group_thousands(std::to_string(*integer));
  if (const double* real = value->as_double()) return number_text(*real, digits);
  return value->dump();
}

}  // namespace tarn::report
