#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "report/png.h"

namespace tarn::report {
namespace {

constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" "
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n";

constexpr const char* kStyle =
    "<style>\n"
    ":root{--ink:#1c2024;--paper:#fff;--soft:#4d565f;--rule:#d5dae0;--tint:#f3f5f7}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--paper:#15181b;--soft:#a9b2ba;"
    "--rule:#3a4148;--tint:#1f2428}}\n"
    "body{margin:0 auto;max-width:60rem;padding:1.5rem;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,sans-serif}\n"
    "h1{margin-bottom:.2em;line-height:1.2}h2{margin-top:2em;border-bottom:1px solid var(--rule)}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;margin:1em 0;"
    "font-variant-numeric:tabular-nums}\n"
    "caption{text-align:left;color:var(--soft);padding-bottom:.4em}\n"
    "th,td{padding:.35em .8em;border-bottom:1px solid var(--rule);text-align:right}\n"
    "th:first-child,td:first-child,.words{text-align:left}thead th{background:var(--tint)}\n"
    "tbody th{font-weight:600}figure{margin:1em 0}figcaption{color:var(--soft)}\n"
    "img,svg{max-width:100%;height:auto}img{image-rendering:pixelated}\n"
    "pre{background:var(--tint);padding:.8em;overflow-x:auto}\n"
    "</style>\n";

/// A name without anything that could mean something in a path.
std::string file_name(const std::string& title) {
  std::string name;
  for (const char c : title) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain) {
      name += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "figure" : name;
}

/// Whether a column has a cell that does not begin as a number does: such columns start on the left.
bool has_words(const Table& table, size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const auto& row) {
    return column < row.size() && !row[column].empty() &&
           std::string_view("0123456789-+.").find(row[column][0]) == std::string_view::npos;
  });
}

}  // namespace

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t have = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < have ? static_cast<uint8_t>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += j <= have ? kDigits[group >> (18 - 6 * j) & 63u] : '=';
    }
  }
  return out;
}

HtmlPage::HtmlPage(std::string title, std::string summary) : title_(std::move(title)) {
  body_ = fmt::format("<h1>{}</h1>\n<p>{}</p>\n", escape_markup(title_), escape_markup(summary));
}

void HtmlPage::section(const std::string& heading) {
  if (section_open_) body_ += "</section>\n";
  body_ += fmt::format("<section>\n<h2>{}</h2>\n", escape_markup(heading));
  section_open_ = true;
}

void HtmlPage::paragraph(const std::string& text) {
  body_ += fmt::format("<p>{}</p>\n", escape_markup(text));
}

void HtmlPage::table(const Table& table) {
  body_ += fmt::format("<div class=\"scroll\"><table>\n<caption>{}</caption>\n<thead><tr>",
                       escape_markup(table.caption));
  std::vector<const char*> mark;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    mark.push_back(i > 0 && has_words(table, i) ? " class=\"words\"" : "");
    body_ +=
        fmt::format("<th scope=\"col\"{}>{}</th>", mark.back(), escape_markup(table.columns[i]));
  }
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    body_ += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string cell = escape_markup(row[i]);
      body_ += i == 0 ? "<th scope=\"row\">" + cell + "</th>"
                      : fmt::format("<td{}>{}</td>", i < mark.size() ? mark[i] : "", cell);
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody>\n</table></div>\n";
}

void HtmlPage::chart(const LineChart& chart) {
  figures_.push_back({file_name(chart.title), render_line_chart(chart)});
  body_ += "<figure>" + figures_.back().svg +
           fmt::format("<figcaption>{}</figcaption></figure>\n", escape_markup(chart.description));
}

Status HtmlPage::picture(const Image& image, const std::string& alt, const std::string& caption) {
  TARN_ASSIGN(const std::string png, encode_png(image));
  picture_png(png, alt, caption);
  return {};
}

void HtmlPage::picture_png(std::string_view png, const std::string& alt,
                           const std::string& caption) {
  body_ += fmt::format(
      "<figure><img alt=\"{}\" src=\"data:image/png;base64,{}\"><figcaption>{}</figcaption>"
      "</figure>\n",
      escape_markup(alt), base64(png), escape_markup(caption));
}

void HtmlPage::code(const std::string& text) {
  body_ += fmt::format("<pre><code>{}</code></pre>\n", escape_markup(text));
}

std::string HtmlPage::finish() const {
  return fmt::format(
      "{}<title>{}</title>\n{}</head>\n<body>\n<main>\n{}{}</main>\n</body>\n</html>\n", kHead,
      escape_markup(title_), kStyle, body_, section_open_ ? "</section>\n" : "");
}

}  // namespace tarn::report
