#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "report/bench_report.h"
#include "report/html.h"
#include "report/png.h"
#include "report/records.h"

namespace tarn::report {
namespace {

constexpr int kDefaultDigits = 3;

/// What the sections of a page are made from.
struct Builder {
  std::string folder;
  HtmlPage page;

  std::string path_of(const std::string& file) const {
    return (std::filesystem::path(folder) / file).string();
  }
  Status add_section(const Json& section, const std::string& where);
  Status add_picture(const Json& picture, const std::string& where);
  Status add_curves(const Json& curves, const std::string& where);
  Status add_table(const Json& table, const std::string& where);
};

/// Empty lines lie between paragraphs.
void add_paragraphs(std::string_view text, HtmlPage& page) {
  while (!text.empty()) {
    const size_t end = std::min(text.find("\n\n"), text.size());
    if (end > 0) page.paragraph(std::string(text.substr(0, end)));
    text.remove_prefix(std::min(end + 2, text.size()));
  }
}

/// Calls `add` on every element of an optional array member.
template <class Add>
Status for_each_of(const Json* list, const std::string& where, Add add) {
  if (list == nullptr) return {};
  if (list->as_array() == nullptr) {
    return invalid_argument(fmt::format("must be an array, got {}", list->type_name()), where);
  }
  for (size_t i = 0; i < list->as_array()->size(); ++i) {
    TARN_RETURN_IF_ERROR(add((*list->as_array())[i], fmt::format("{}[{}]", where, i)));
  }
  return {};
}

Status Builder::add_picture(const Json& picture, const std::string& where) {
  JsonReader reader(picture, where);
  const std::string path = path_of(reader.string("file"));
  const std::string alt = reader.string("alt");
  const std::string caption = reader.string("caption", "");
  TARN_RETURN_IF_ERROR(reader.finish());
  TARN_ASSIGN(const std::string bytes, read_file(path, PngLimits{}.max_file_bytes));
  TARN_RETURN_IF_ERROR(decode_png(bytes, 3, path));
  page.picture_png(bytes, alt, caption);
  return {};
}

bool is_number(const Json& value) {
  return value.as_int() != nullptr || value.as_double() != nullptr;
}

bool same_kind(const Json& a, const Json& b) {
  return (is_number(a) && is_number(b)) || std::string_view(a.type_name()) == b.type_name();
}

bool same_value(const Json& a, const Json& b) {
  double first = 0, second = 0;
  if (as_number(&a, first) && as_number(&b, second)) return first == second;
  return a == b;
}

/// A filter must be an object of scalars, each of a type that the key has somewhere in the records
/// (where it stands in any): nothing else could ever match.
Status check_filter(const Json* filter, const std::vector<Json>& records, const std::string& where,
                    const std::string& file) {
  if (filter == nullptr) return {};
  if (filter->as_object() == nullptr) {
    return invalid_argument(fmt::format("must be an object, got {}", filter->type_name()), where);
  }
  for (const auto& [key, value] : *filter->as_object()) {
    const std::string path = where + "." + key;
    if (value.as_string() == nullptr && value.as_bool() == nullptr && !is_number(value)) {
      return invalid_argument(
          fmt::format("must be a string, a number or a boolean, got {}", value.type_name()), path);
    }
    const Json* other = nullptr;
    bool fits = false;
    for (const Json& record : records) {
      const Json* own = find_path(record, key);
      if (own == nullptr) continue;
      fits = fits || same_kind(*own, value);
      other = own;
    }
    if (other != nullptr && !fits) {
      return invalid_argument(fmt::format("got {} {}, but in {} it is {}", value.type_name(),
                                          value.dump(), file, other->type_name()),
                              path);
    }
  }
  return {};
}

/// Whether a record has every member of `filter` (null: no condition).
bool matches(const Json& record, const Json* filter) {
  if (filter == nullptr) return true;
  for (const auto& [key, value] : *filter->as_object()) {
    const Json* own = find_path(record, key);
    if (own == nullptr || !same_value(*own, value)) return false;
  }
  return true;
}

Status Builder::add_curves(const Json& curves, const std::string& where) {
  JsonReader reader(curves, where);
  LineChart chart;
  chart.title = reader.string("title");
  chart.description = reader.string("description");
  const std::string x = reader.string("x");
  const std::string y = reader.string("y");
  chart.x_label = reader.string("x_label", x);
  chart.y_label = reader.string("y_label", y);
  chart.x_log = reader.boolean("x_log", false);
  chart.y_log = reader.boolean("y_log", false);
  const Json* series = reader.required("series");
  TARN_RETURN_IF_ERROR(reader.finish());
  auto add_series = [&](const Json& one, const std::string& one_where) -> Status {
    JsonReader one_reader(one, one_where);
    const std::string path = path_of(one_reader.string("file"));
    Series line{one_reader.string("name", path), {}};
    const Json* filter = one_reader.optional("where");
    TARN_RETURN_IF_ERROR(one_reader.finish());
    TARN_ASSIGN(const std::vector<Json> records, read_records(path));
    TARN_RETURN_IF_ERROR(check_filter(filter, records, one_where + ".where", path));
    for (const Json& record : records) {
      std::pair<double, double> point;
      if (matches(record, filter) && as_number(find_path(record, x), point.first) &&
          as_number(find_path(record, y), point.second)) {
        line.points.push_back(point);
      }
    }
    chart.series.push_back(std::move(line));
    return {};
  };
  TARN_RETURN_IF_ERROR(for_each_of(series, where + ".series", add_series));
  page.chart(chart);
  return {};
}

struct Column {
  std::string key, title;
  int digits = kDefaultDigits;
};

/// Every key of the first record that holds a scalar.
std::vector<Column> columns_of(const std::vector<Json>& records) {
  std::vector<Column> columns;
  if (records.empty() || records.front().as_object() == nullptr) return columns;
  for (const auto& [key, value] : *records.front().as_object()) {
    if (value.as_object() != nullptr || value.as_array() != nullptr) continue;
    std::string title = key;
    std::replace(title.begin(), title.end(), '_', ' ');
    columns.push_back({key, title, kDefaultDigits});
  }
  return columns;
}

Status Builder::add_table(const Json& json, const std::string& where) {
  JsonReader reader(json, where);
  const std::string path = path_of(reader.string("file"));
  Table table;
  table.caption = reader.string("caption", "");
  const Json* wanted = reader.optional("columns");
  TARN_RETURN_IF_ERROR(reader.finish());
  TARN_ASSIGN(const std::vector<Json> records, read_records(path));
  std::vector<Column> columns;
  auto add_column = [&](const Json& one, const std::string& one_where) -> Status {
    JsonReader one_reader(one, one_where);
    Column column;
    column.key = one_reader.string("key");
    column.title = one_reader.string("title", column.key);
    column.digits = static_cast<int>(one_reader.integer("digits", 1, 17, kDefaultDigits));
    TARN_RETURN_IF_ERROR(one_reader.finish());
    columns.push_back(column);
    return {};
  };
  TARN_RETURN_IF_ERROR(for_each_of(wanted, where + ".columns", add_column));
  if (columns.empty()) columns = columns_of(records);
  for (const Column& column : columns) table.columns.push_back(column.title);
  for (const Json& record : records) {
    auto& row = table.rows.emplace_back();
    for (const Column& column : columns) {
      row.push_back(cell_text(find_path(record, column.key), column.digits));
    }
  }
  page.table(table);
  return {};
}

Status Builder::add_section(const Json& section, const std::string& where) {
  JsonReader reader(section, where);
  const std::string heading = reader.string("heading");
  const std::string text = reader.string("text", "");
  const std::string code = reader.string("code", "");
  const Json* pictures = reader.optional("pictures");
  const Json* curves = reader.optional("curves");
  const Json* tables = reader.optional("tables");
  TARN_RETURN_IF_ERROR(reader.finish());
  page.section(heading);
  add_paragraphs(text, page);
  auto picture = [&](const Json& one, const std::string& at) { return add_picture(one, at); };
  auto curve = [&](const Json& one, const std::string& at) { return add_curves(one, at); };
  auto table = [&](const Json& one, const std::string& at) { return add_table(one, at); };
  TARN_RETURN_IF_ERROR(for_each_of(tables, where + ".tables", table));
  TARN_RETURN_IF_ERROR(for_each_of(pictures, where + ".pictures", picture));
  TARN_RETURN_IF_ERROR(for_each_of(curves, where + ".curves", curve));
  if (!code.empty()) page.code(code);
  return {};
}

/// The manifest of a folder that has none.
Json default_manifest(const std::vector<std::string>& files, const std::string& folder) {
  Json::Array pictures, tables, series;
  for (const std::string& file : files) {
    const std::string extension = std::filesystem::path(file).extension().string();
    Json item;
    item.set("file", file);
    if (extension == ".png") {
      item.set("alt", "picture " + file);
      item.set("caption", file);
      pictures.push_back(std::move(item));
    } else if (extension == ".jsonl") {
      item.set("name", file);
      series.push_back(std::move(item));
    } else if (extension == ".json") {
      item.set("caption", file);
      tables.push_back(std::move(item));
    }
  }
  Json::Array sections;
  auto add = [&](const char* heading, const char* kind, Json::Array items) {
    if (items.empty()) return;
    Json section;
    section.set("heading", heading);
    section.set(kind, std::move(items));
    sections.push_back(std::move(section));
  };
  Json::Array curves;
  if (!series.empty()) {
    Json chart;
    chart.set("title", "Training");
    chart.set("description", "Bits per dimension on training data against the number of updates.");
    chart.set("x", "update");
    chart.set("y", "bits_per_dim");
    chart.set("series", std::move(series));
    curves.push_back(std::move(chart));
  }
  add("Results", "tables", std::move(tables));
  add("Pictures", "pictures", std::move(pictures));
  add("Curves", "curves", std::move(curves));
  Json manifest;
  manifest.set("title", "Tarn: " + folder);
  manifest.set("sections", std::move(sections));
  return manifest;
}

/// Names of the regular files of a folder that a page can show, sorted.
Result<std::vector<std::string>> list_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string extension = it->path().extension().string();
    if (extension == ".json" || extension == ".jsonl" || extension == ".png") {
      files.push_back(it->path().filename().string());
    }
  }
  if (error == std::errc::not_a_directory) {
    return invalid_argument("got a file, wanted a folder", folder);
  }
  if (error) {
    const auto code =
        error == std::errc::no_such_file_or_directory ? ErrorCode::kNotFound : ErrorCode::kIo;
    return Error{code, "cannot list the folder: " + error.message(), folder};
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    return Error{ErrorCode::kNotFound, "the folder has no .json, .jsonl or .png file to report",
                 folder};
  }
  return files;
}

}  // namespace

Result<HtmlPage> build_report(const std::string& folder) {
  std::error_code unreadable;
  if (!std::filesystem::exists(std::filesystem::path(folder) / "report.json", unreadable)) {
    const std::vector<BenchRun> runs = read_bench_runs(folder);
    if (!runs.empty()) return build_bench_report(runs);
  }
  TARN_ASSIGN(const std::vector<std::string> files, list_files(folder));
  const std::string path = (std::filesystem::path(folder) / "report.json").string();
  Json manifest = default_manifest(files, folder);
  if (std::find(files.begin(), files.end(), "report.json") != files.end()) {
    TARN_ASSIGN(const std::string text, read_file(path, JsonLimits{}.max_bytes));
    TARN_ASSIGN(manifest, parse_json(text, path));
  }
  JsonReader reader(manifest, path);
  const std::string title = reader.string("title");
  const std::string summary = reader.string("summary", "");
  const Json* sections = reader.required("sections");
  TARN_RETURN_IF_ERROR(reader.finish());
  Builder builder{folder, HtmlPage(title, summary)};
  auto section = [&](const Json& one, const std::string& at) {
    return builder.add_section(one, at);
  };
  TARN_RETURN_IF_ERROR(for_each_of(sections, path + ": sections", section));
  return std::move(builder.page);
}

}  // namespace tarn::report
