#include "report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace tarn::report {
namespace {

constexpr double kLeft = 68, kRight = 20, kTop = 64, kBottom = 52;
constexpr size_t kMaxDrawnPoints = 1200;
constexpr double kLargest = 1e300;      // of a drawn value: sums and differences stay finite
constexpr double kNarrowest = 1e-12;    // range of a linear axis, relative to its values
constexpr double kNarrowestLog = 1e-9;  // range of a logarithmic axis, in powers of ten
constexpr size_t kColours = 8;
constexpr std::array<const char*, kColours> kDashes = {"",     "7 4", "2 3",     "10 3 2 3",
                                                       "14 5", "4 2", "1 2 6 2", "18 4 4 4"};
constexpr double kLegendRow = 20;
constexpr double kCharacter = 7.2;  // width of one, about

// Colours are written out: programs that turn SVG into other formats do not know CSS variables.
constexpr const char* kStyle =
    "<style>.tarn-chart{font:13px system-ui,sans-serif}.tarn-chart text{fill:#1c2024}"
    ".tarn-chart .grid{stroke:#d5dae0}.tarn-chart .frame{stroke:#1c2024;fill:none}"
    ".tarn-chart .line{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".tarn-chart .s0{stroke:#1f5fa8}.tarn-chart .d0{fill:#1f5fa8}"
    ".tarn-chart .s1{stroke:#b8430f}.tarn-chart .d1{fill:#b8430f}"
    ".tarn-chart .s2{stroke:#2c7a3f}.tarn-chart .d2{fill:#2c7a3f}"
    ".tarn-chart .s3{stroke:#7a3fa0}.tarn-chart .d3{fill:#7a3fa0}"
    ".tarn-chart .s4{stroke:#806400}.tarn-chart .d4{fill:#806400}"
    ".tarn-chart .s5{stroke:#0b6f78}.tarn-chart .d5{fill:#0b6f78}"
    ".tarn-chart .s6{stroke:#a8275f}.tarn-chart .d6{fill:#a8275f}"
    ".tarn-chart .s7{stroke:#4d565f}.tarn-chart .d7{fill:#4d565f}"
    "@media(prefers-color-scheme:dark){.tarn-chart text{fill:#e6e9ec}"
    ".tarn-chart .grid{stroke:#3a4148}.tarn-chart .frame{stroke:#e6e9ec}"
    ".tarn-chart .s0{stroke:#7db4f0}.tarn-chart .d0{fill:#7db4f0}"
    ".tarn-chart .s1{stroke:#f0955f}.tarn-chart .d1{fill:#f0955f}"
    ".tarn-chart .s2{stroke:#74c98a}.tarn-chart .d2{fill:#74c98a}"
    ".tarn-chart .s3{stroke:#c79af0}.tarn-chart .d3{fill:#c79af0}"
    ".tarn-chart .s4{stroke:#e0c04a}.tarn-chart .d4{fill:#e0c04a}"
    ".tarn-chart .s5{stroke:#5fd0d8}.tarn-chart .d5{fill:#5fd0d8}"
    ".tarn-chart .s6{stroke:#f08ab4}.tarn-chart .d6{fill:#f08ab4}"
    ".tarn-chart .s7{stroke:#a9b2ba}.tarn-chart .d7{fill:#a9b2ba}}</style>";

/// Maps data values of one axis to pixels.
struct Axis {
  bool log = false;
  double low = 0, high = 1;    // data range
  double first = 0, last = 1;  // pixel of low and of high
  double pixel(double value) const {
    const double part =
        log ? (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low))
            : (value - low) / (high - low);
    return first + part * (last - first);
  }
};

bool drawable(double value, bool log) {
  return std::abs(value) <= kLargest && (!log || value >= 1 / kLargest);  // no NaN passes either
}

bool drawable(const LineChart& chart, const std::pair<double, double>& point) {
  return drawable(point.first, chart.x_log) && drawable(point.second, chart.y_log);
}

/// Whether low and high are so close that positions between them would be rounding, or no numbers.
bool is_empty_range(const Axis& axis) {
  if (axis.log) return std::log10(axis.high) - std::log10(axis.low) < kNarrowestLog;
  const double size = std::max(std::abs(axis.low), std::abs(axis.high));
  return axis.high - axis.low <= std::max(1 / kLargest, kNarrowest * size);
}

/// Widens an empty range, and leaves some air around a linear one.
void finish_range(Axis& axis, bool air) {
  if (is_empty_range(axis)) {
    const double half = axis.log ? 0 : std::max(1e-9, std::abs(axis.low) * 0.1);
    axis.low = axis.log ? axis.low / 2 : axis.low - half;
    axis.high = axis.log ? axis.high * 2 : axis.high + half;
  } else if (air && !axis.log) {
    const double margin = 0.05 * (axis.high - axis.low);
    axis.high += margin;
    axis.low = axis.low >= 0 && axis.low < margin ? 0 : axis.low - margin;
  }
}

std::vector<double> ticks_of(const Axis& axis, int wanted) {
  return axis.log ? log_ticks(axis.low, axis.high) : linear_ticks(axis.low, axis.high, wanted);
}

void draw_axes(const LineChart& chart, const Axis& x, const Axis& y, std::string& svg) {
  auto out = std::back_inserter(svg);
  for (double tick : ticks_of(x, 8)) {
    fmt::format_to(out,
                   "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" "
                   "y2=\"{2:.1f}\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">"
                   "{4}</text>",
                   x.pixel(tick), y.first, y.last, y.first + 18, tick_label(tick));
  }
  for (double tick : ticks_of(y, 6)) {
    fmt::format_to(out,
                   "<line class=\"grid\" x1=\"{1:.1f}\" x2=\"{2:.1f}\" y1=\"{0:.1f}\" "
                   "y2=\"{0:.1f}\"/><text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">"
                   "{5}</text>",
                   y.pixel(tick), x.first, x.last, x.first - 8, y.pixel(tick) + 4,
                   tick_label(tick));
  }
  fmt::format_to(out,
                 "<rect class=\"frame\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" "
                 "height=\"{:.1f}\"/>",
                 x.first, y.last, x.last - x.first, y.first - y.last);
  fmt::format_to(out, "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                 (x.first + x.last) / 2, chart.height - 12, escape_markup(chart.x_label));
  const double middle = (y.first + y.last) / 2;
  fmt::format_to(out,
                 "<text x=\"16\" y=\"{0:.1f}\" text-anchor=\"middle\" "
                 "transform=\"rotate(-90 16 {0:.1f})\">{1}</text>",
                 middle, escape_markup(chart.y_label));
}

void draw_series(const LineChart& chart, const Axis& x, const Axis& y, size_t index,
                 std::string& svg) {
  std::vector<std::pair<double, double>> points;
  for (const auto& point : chart.series[index].points) {
    if (drawable(chart, point)) points.push_back(point);
  }
  if (points.empty()) return;
  const size_t step = (points.size() + kMaxDrawnPoints - 1) / kMaxDrawnPoints;
  auto out = std::back_inserter(svg);
  fmt::format_to(out, "<polyline class=\"line s{}\"{} points=\"", index % kColours,
                 index % kColours == 0
                     ? std::string()
                     : fmt::format(" stroke-dasharray=\"{}\"", kDashes[index % kColours]));
  for (size_t i = 0; i < points.size(); ++i) {
    if (i % step != 0 && i + 1 != points.size()) continue;
    fmt::format_to(out, "{:.1f},{:.1f} ", x.pixel(points[i].first), y.pixel(points[i].second));
  }
  svg += "\"/>";
  if (points.size() > 24) return;
  for (const auto& point : points) {
    fmt::format_to(out, "<circle r=\"3\" cx=\"{:.1f}\" cy=\"{:.1f}\" class=\"d{}\"/>",
                   x.pixel(point.first), y.pixel(point.second), index % kColours);
  }
}

struct LegendEntry {
  double left = 0;
  int row = 0;
};

/// Where the names of the series stand: side by side, in a new row where the width is used up.
std::vector<LegendEntry> place_legend(const LineChart& chart) {
  std::vector<LegendEntry> entries;
  double left = kLeft;
  int row = 0;
  for (const Series& series : chart.series) {
    const double width = 34 + kCharacter * static_cast<double>(series.name.size());
    if (left > kLeft && left + width > chart.width) {
      left = kLeft;
      ++row;
    }
    entries.push_back({left, row});
    left += width + 24;
  }
  return entries;
}

void draw_legend(const LineChart& chart, const std::vector<LegendEntry>& entries,
                 std::string& svg) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const double left = entries[i].left, y = 44 + kLegendRow * entries[i].row;
    fmt::format_to(std::back_inserter(svg),
                   "<line class=\"line s{0}\" stroke-dasharray=\"{1}\" "
                   "x1=\"{2:.1f}\" x2=\"{3:.1f}\" y1=\"{4:.0f}\" y2=\"{4:.0f}\"/>"
                   "<text x=\"{5:.1f}\" y=\"{6:.0f}\">{7}</text>",
                   i % kColours, i % kColours == 0 ? "none" : kDashes[i % kColours], left,
                   left + 28, y, left + 34, y + 4, escape_markup(chart.series[i].name));
  }
}

}  // namespace

std::string escape_markup(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') out += c;
    }
  }
  return out;
}

std::vector<double> linear_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(1, wanted);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (double i = first; i * step <= high + 1e-9 * step && ticks.size() < 100; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  const int from = static_cast<int>(std::floor(std::log10(low) - 1e-9));
  const int to = static_cast<int>(std::ceil(std::log10(high) + 1e-9));
  const bool fine = to - from <= 3;
  const int stride = std::max(1, (to - from) / 8);
  std::vector<double> ticks;
  for (int power = from; power <= to; power += stride) {
    for (double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, power);
      const bool inside = tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9);
      if (inside && (fine || factor == 1.0)) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string tick_label(double value) {
  const double size = std::abs(value);
  if (size >= 1e9 || (size > 0 && size < 1e-4)) return fmt::format("{:.3g}", value);
  if (size >= 1e6) return fmt::format("{:.4g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:.4g}k", value / 1e3);
  // Steps are round, so what is left of a tick after six digits is rounding.
  return size < 1e-12 ? "0" : fmt::format("{:.6g}", value);
}

std::string render_line_chart(const LineChart& chart) {
  Axis x{chart.x_log, INFINITY, -INFINITY, kLeft, chart.width - kRight};
  const std::vector<LegendEntry> legend = place_legend(chart);
  const double more_rows = legend.empty() ? 0 : kLegendRow * legend.back().row;
  Axis y{chart.y_log, INFINITY, -INFINITY, chart.height - kBottom, kTop + more_rows};
  for (const Series& series : chart.series) {
    for (const auto& point : series.points) {
      if (!drawable(chart, point)) continue;
      x.low = std::min(x.low, point.first);
      x.high = std::max(x.high, point.first);
      y.low = std::min(y.low, point.second);
      y.high = std::max(y.high, point.second);
    }
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"tarn-chart\" role=\"img\" "
      "viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\"><title>{2}</title><desc>{3}</desc>"
      "{4}<text x=\"{5}\" y=\"22\" font-weight=\"600\">{2}</text>",
      chart.width, chart.height, escape_markup(chart.title), escape_markup(chart.description),
      kStyle, kLeft);
  if (x.low > x.high) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\">No data to draw.</text></svg>", kLeft,
                       chart.height / 2);
    return svg;
  }
  finish_range(x, false);
  finish_range(y, true);
  draw_axes(chart, x, y, svg);
  for (size_t i = 0; i < chart.series.size(); ++i) draw_series(chart, x, y, i, svg);
  draw_legend(chart, legend, svg);
  svg += "</svg>";
  return svg;
}

}  // namespace tarn::report
