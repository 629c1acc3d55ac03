#include "report/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "base/file.h"
#include "report/html.h"
#include "report/records.h"

namespace tarn::report {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int kDigits = 3;

std::string text_of(const Json& object, const char* key) {
  const Json* value = object.find(key);
  return value == nullptr ? "" : cell_text(value, kDigits);
}

/// Lines that may share a chart: everything but mechanism and length is equal.
std::string group_of(const Json& line) {
  return fmt::format("{}, {}, batch {}, {} heads of {} and {}, threads: {}", text_of(line, "form"),
                     text_of(line, "dtype"), text_of(line, "batch"), text_of(line, "heads"),
                     text_of(line, "key_dim"), text_of(line, "value_dim"),
                     text_of(line, "threads"));
}

void collect_lines(const Json& document, std::vector<Json>& lines) {
  for (const Json& result : *document.find("results")->as_array()) {
    const Json* output = result.find("output");
    if (output == nullptr || output->as_array() == nullptr) continue;
    for (const Json& line : *output->as_array()) {
      if (line.find("mixer") != nullptr && line.find("n") != nullptr) lines.push_back(line);
    }
  }
}

void read_folder(const std::filesystem::path& folder, std::vector<BenchRun>& runs) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".json") continue;
    const Result<std::string> text = read_file(it->path().string(), kMaxFileBytes);
    if (!text.ok()) continue;
    Result<Json> document = parse_json(text.value(), it->path().string());
    if (!document.ok()) continue;
    const Json* machine = document.value().find("machine");
    const Json* results = document.value().find("results");
    if (machine == nullptr || machine->as_object() == nullptr || results == nullptr ||
        results->as_array() == nullptr) {
      continue;
    }
    BenchRun run{folder.filename().string(),
                 it->path().stem().string(),
                 text_of(document.value(), "time"),
                 std::move(document).value(),
                 {}};
    collect_lines(run.document, run.lines);
    runs.push_back(std::move(run));
  }
}

/// The points of one mechanism in one group, by length; of two figures for a length the last.
using Curve = std::map<double, double>;

/// A chart of the member `y` against the length, with a series for each mechanism; drawn only when
/// some series has two points.
void add_length_chart(const BenchRun& run, const std::string& group, const char* y,
                      const char* label, bool y_log, HtmlPage& page) {
  std::map<std::string, Curve> curves;
  for (const Json& line : run.lines) {
    double tokens = 0, value = 0;
    if (group_of(line) == group && as_number(line.find("n"), tokens) &&
        as_number(line.find(y), value)) {
      curves[text_of(line, "mixer")][tokens] = value;
    }
  }
  LineChart chart;
  chart.title = fmt::format("{}: {}", label, group);
  chart.description = fmt::format("{} against the number of tokens, commit {}.", label, run.commit);
  chart.x_label = "tokens";
  chart.y_label = label;
  chart.x_log = true;
  chart.y_log = y_log;
  bool drawn = false;
  for (const auto& [name, curve] : curves) {
    chart.series.push_back({name, {curve.begin(), curve.end()}});
    drawn = drawn || curve.size() > 1;
  }
  if (drawn) page.chart(chart);
}

/// Percent of the limit of the longest sequences of a group, run after run.
void add_history_chart(std::span<const BenchRun> runs, const std::string& group, HtmlPage& page) {
  double longest = 0;
  for (const Json& line : runs.back().lines) {
    double tokens = 0;
    if (group_of(line) == group && as_number(line.find("n"), tokens)) {
      longest = std::max(longest, tokens);
    }
  }
  std::map<std::string, Curve> curves;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const Json& line : runs[i].lines) {
      double tokens = 0, percent = 0;
      if (group_of(line) == group && as_number(line.find("n"), tokens) && tokens == longest &&
          as_number(line.find("percent_of_roof"), percent)) {
        curves[text_of(line, "mixer")][static_cast<double>(i + 1)] = percent;
      }
    }
  }
  if (curves.empty()) return;
  LineChart chart;
  chart.title = fmt::format("{}, n = {:.0f}", group, longest);
  chart.description =
      "Percent of the limit, run after run; numbers are those of the table of runs.";
  chart.x_label = "run";
  chart.y_label = "percent of the limit";
  for (const auto& [name, curve] : curves) {
    chart.series.push_back({name, {curve.begin(), curve.end()}});
  }
  page.chart(chart);
}

Table runs_table(std::span<const BenchRun> runs) {
  Table table{"Runs, oldest first", {"run", "commit", "time", "compiler", "SIMD", "figures"}, {}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const Json& machine = *runs[i].document.find("machine");
    table.rows.push_back({std::to_string(i + 1), runs[i].commit, runs[i].time,
                          text_of(machine, "compiler"), text_of(machine, "simd_chosen"),
                          std::to_string(runs[i].lines.size())});
  }
  return table;
}

void add_roof_table(const BenchRun& run, HtmlPage& page) {
  const Json* roof = run.document.find("roof");
  if (roof == nullptr || roof->as_array() == nullptr || roof->as_array()->empty()) return;
  Table table{"Limits of the machine, measured in the newest run",
              {"limit", "threads", "median", "min", "max", "unit"},
              {}};
  for (const Json& figure : *roof->as_array()) {
    const Json* value = figure.find("value");
    const bool absent = value == nullptr || value->is_null();
    table.rows.push_back({text_of(figure, "kind"), text_of(figure, "threads"),
                          absent ? "absent" : text_of(figure, "value"), text_of(figure, "min"),
                          text_of(figure, "max"), text_of(figure, "unit")});
  }
  page.table(table);
}

/// Sequences per second of the newest run's documents with "rows" of methods.
void add_generation_table(const BenchRun& run, HtmlPage& page) {
  Table table{"Generation in the newest run",
              {"method", "threads", "batch", "sequences/s", "ms per token first", "last"},
              {}};
  for (const Json& result : *run.document.find("results")->as_array()) {
    const Json* output = result.find("output");
    if (output == nullptr || output->as_array() == nullptr) continue;
    for (const Json& document : *output->as_array()) {
      const Json* rows = document.find("rows");
      if (rows == nullptr || rows->as_array() == nullptr) continue;
      for (const Json& row : *rows->as_array()) {
        if (row.find("method") == nullptr) continue;
        for (const auto& [key, figures] : *row.as_object()) {
          if (figures.find("images_per_second") == nullptr) continue;
          table.rows.push_back(
              {text_of(row, "method"), text_of(document, "threads"), key.substr(key.find('_') + 1),
               text_of(figures, "images_per_second"), text_of(figures, "ms_per_token_first"),
               text_of(figures, "ms_per_token_last")});
        }
      }
    }
  }
  if (!table.rows.empty()) page.table(table);
}

void add_host(std::span<const BenchRun> runs, HtmlPage& page) {
  const BenchRun& newest = runs.back();
  const Json& machine = *newest.document.find("machine");
  page.section(newest.host);
  page.paragraph(fmt::format("{}, {} threads. Charts show the newest run, commit {}.",
                             text_of(machine, "cpu"), text_of(machine, "threads"), newest.commit));
  page.table(runs_table(runs));
  add_roof_table(newest, page);
  add_generation_table(newest, page);
  std::set<std::string> groups;
  for (const Json& line : newest.lines) groups.insert(group_of(line));
  page.section(newest.host + ": against the length");
  for (const std::string& group : groups) {
    add_length_chart(newest, group, "ms_median", "milliseconds", true, page);
    add_length_chart(newest, group, "peak_extra_bytes", "bytes beside the tensors", true, page);
    add_length_chart(newest, group, "percent_of_roof", "percent of the limit", false, page);
  }
  page.section(newest.host + ": history");
  for (const std::string& group : groups) add_history_chart(runs, group, page);
}

}  // namespace

std::vector<BenchRun> read_bench_runs(const std::string& folder) {
  std::vector<BenchRun> runs;
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  read_folder(path.has_filename() ? path : path.parent_path(), runs);
  std::error_code error;
  for (std::filesystem::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code unreadable;
    if (it->is_directory(unreadable)) read_folder(it->path(), runs);
  }
  std::sort(runs.begin(), runs.end(), [](const BenchRun& a, const BenchRun& b) {
    return std::tie(a.host, a.time, a.commit) < std::tie(b.host, b.time, b.commit);
  });
  return runs;
}

HtmlPage build_bench_report(const std::vector<BenchRun>& runs) {
  HtmlPage page("Tarn: benchmark results",
                "What the benchmarks measured, and how close it came to the limit of the machine "
                "that binds it: multiply-adds on registers, or the bandwidth of the memory that "
                "holds the tensors.");
  for (size_t begin = 0; begin < runs.size();) {
    size_t end = begin;
    while (end < runs.size() && runs[end].host == runs[begin].host) ++end;
    add_host(std::span(runs).subspan(begin, end - begin), page);
    begin = end;
  }
  return page;
}

}  // namespace tarn::report
