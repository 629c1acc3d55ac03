#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tarn::report {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< (x, y); drawn in the given order
};

/// A line chart. Points that are not finite or beyond ±1e300 are left out, and so are those below
/// 1e-300 on a logarithmic axis.
struct LineChart {
  std::string title;
  std::string description;  ///< what a reader who cannot see it should know
  std::string x_label;
  std::string y_label;
  bool x_log = false;
  bool y_log = false;
  int width = 720;
  int height = 380;
  std::vector<Series> series;
};

/// The chart as one <svg> element: stands alone as a file and inlines into a page. Colours follow
/// the reader's light or dark scheme; series differ by dashes too, not by colour alone.
std::string render_line_chart(const LineChart& chart);

/// Tick positions from `low` to `high` (low < high): round steps, or powers of ten with their 2 and
/// 5 multiples when few. `wanted` is the number aimed at.
std::vector<double> linear_ticks(double low, double high, int wanted);
std::vector<double> log_ticks(double low, double high);
/// "0.25", "40k", "2M", "1e-05".
std::string tick_label(double value);

/// Replaces the five characters that mean something in XML and HTML, and drops control characters.
std::string escape_markup(const std::string& text);

}  // namespace tarn::report
