#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "report/image.h"
#include "report/svg.h"

namespace tarn::report {

/// A chart of a page.
struct Figure {
  std::string name;  ///< the title in lower case, "-" for whatever is neither letter nor digit
  std::string svg;   ///< stands alone as a file
};

struct Table {
  std::string caption;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  ///< the first cell of a row is its heading
};

/// Builds one self-contained HTML page: no script, nothing fetched, readable on light and dark.
/// All text given to it is plain text and is escaped here.
class HtmlPage {
 public:
  /// `title` is the only level-1 heading; `summary` stands below it.
  HtmlPage(std::string title, std::string summary);

  void section(const std::string& heading);
  void paragraph(const std::string& text);
  void table(const Table& table);
  void chart(const LineChart& chart);
  /// `alt` describes the picture to a reader who cannot see it; `caption` stands below.
  Status picture(const Image& image, const std::string& alt, const std::string& caption);
  /// Bytes of a PNG file as they are.
  void picture_png(std::string_view png, const std::string& alt, const std::string& caption);
  void code(const std::string& text);

  std::string finish() const;
  /// The charts so far, in the page's order.
  const std::vector<Figure>& figures() const { return figures_; }

 private:
  std::string title_;
  std::string body_;
  std::vector<Figure> figures_;
  bool section_open_ = false;
};

std::string base64(std::string_view bytes);

}  // namespace tarn::report
