#include <gtest/gtest.h>
#include <unistd.h>
#include <cstdio>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "report/html.h"
#include "report/png.h"
#include "report/records.h"
#include "report/report.h"
#include "report/svg.h"

namespace tarn::report {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Svg, LinearTicksAreRoundAndInside) {
  EXPECT_EQ(linear_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (double tick : linear_ticks(0.613, 0.7217, 6)) {
    EXPECT_GE(tick, 0.613 - 1e-12);
    EXPECT_LE(tick, 0.7217 + 1e-12);
    EXPECT_NEAR(tick / 0.02, std::round(tick / 0.02), 1e-9);
  }
}

TEST(Svg, LogTicksArePowersOfTen) {
  EXPECT_EQ(log_ticks(1, 1e6).size(), 7u);
  const std::vector<double> fine = log_ticks(1, 10);
  ASSERT_EQ(fine.size(), 4u);
  EXPECT_DOUBLE_EQ(fine[1], 2);
  EXPECT_DOUBLE_EQ(fine[2], 5);
}

TEST(Svg, LabelsAreShort) {
  EXPECT_EQ(tick_label(0), "0");
  EXPECT_EQ(tick_label(65536), "65.54k");
  EXPECT_EQ(tick_label(0.30000000000000004), "0.3");
  EXPECT_EQ(tick_label(2e6), "2M");
}

TEST(Svg, DrawsEverySeriesAtTheRightEnds) {
  LineChart chart;
  chart.title = "a < b";
  chart.description = "falls & falls";
  chart.series = {{"one", {{0, 1}, {10, 0}}}, {"two", {{0, 0.5}, {10, NAN}, {5, 0.25}}}};
  const std::string svg = render_line_chart(chart);
  EXPECT_EQ(count_of(svg, "<polyline"), 2u);
  EXPECT_EQ(count_of(svg, "<circle"), 4u) << "the NaN point must not be drawn";
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("falls &amp; falls"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("68.0,"), std::string::npos) << "x = 0 lies on the left edge";
  EXPECT_NE(svg.find("700.0,"), std::string::npos) << "x = 10 lies on the right edge";
}

TEST(Svg, LegendsTakeAsManyRowsAsTheyNeed) {
  LineChart chart;
  for (int i = 0; i < 9; ++i) {
    chart.series.push_back({"a series with a name " + std::to_string(i), {{0, 1}, {1, 2}}});
  }
  const std::string svg = render_line_chart(chart);
  const auto name_at = [&](int i) {
    const size_t end = svg.find(">a series with a name " + std::to_string(i));
    const size_t start = svg.rfind("<text x=\"", end);
    double x = 0, y = 0;
    EXPECT_EQ(std::sscanf(svg.c_str() + start, "<text x=\"%lf\" y=\"%lf", &x, &y), 2);
    return std::pair(x, y);
  };
  for (int i = 0; i < 9; ++i) {
    const auto [x, y] = name_at(i);
    EXPECT_LT(x + 7 * 22, chart.width) << "name " << i << " ends inside";
    EXPECT_EQ(y, 48 + 20 * (i / 3)) << "three fit in a row";
  }
  EXPECT_NE(svg.find("<rect class=\"frame\" x=\"68.0\" y=\"104.0\""), std::string::npos)
      << "the plot begins below them";
  EXPECT_EQ(svg.find("var("), std::string::npos) << "converters do not know CSS variables";
}

TEST(Svg, DegenerateDataStillGivesAChart) {
  LineChart chart;
  EXPECT_NE(render_line_chart(chart).find("No data"), std::string::npos);
  chart.series = {{"dot", {{3, 3}}}};
  chart.x_log = chart.y_log = true;
  const std::string svg = render_line_chart(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  chart.series = {{"negative", {{-1, -1}}}};
  EXPECT_NE(render_line_chart(chart).find("No data"), std::string::npos);
}

TEST(Svg, ExtremeValuesStayNumbers) {
  using Points = std::vector<std::pair<double, double>>;
  const double largest = std::numeric_limits<double>::max();
  const double smallest = std::numeric_limits<double>::denorm_min();
  const Points cases[] = {
      {{0, 0}},
      {{0, 0}, {0, smallest}},
      {{smallest, smallest}, {1, 1}},
      {{1, 1}, {1 + 1e-16, 1 + 1e-16}, {1 + 3e-16, 1 + 3e-16}},
      {{1e17, -1e17}, {1e17 + 16, -1e17 - 16}},
      {{1e-300, 1e-300}, {1e300, 1e300}},
      {{-1e300, 1e300}, {1e300, -1e300}},
      {{1e300, 1e300}},
      {{1e308, 1e308}, {-1e308, -1e308}, {1, 1}},
      {{largest, largest}, {-largest, 0}, {INFINITY, NAN}, {2, 3}, {5, 7}},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    for (const bool log : {false, true}) {
      LineChart chart;
      chart.x_log = chart.y_log = log;
      chart.series = {{"s", cases[i]}};
      const std::string svg = render_line_chart(chart);
      EXPECT_EQ(svg.find("nan"), std::string::npos) << i << log << svg;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << i << log << svg;
      EXPECT_EQ(svg.substr(svg.size() - 6), "</svg>");
      EXPECT_LT(svg.size(), 10'000u) << i << log;
    }
  }
}

TEST(Svg, LongSeriesAreThinnedButKeepTheirEnd) {
  LineChart chart;
  chart.series = {{"long", {}}};
  for (int i = 0; i < 100'000; ++i) chart.series[0].points.push_back({i, i % 7});
  const std::string svg = render_line_chart(chart);
  EXPECT_LT(svg.size(), 60'000u);
  EXPECT_NE(svg.find(" 700.0,"), std::string::npos);
}

TEST(Html, Base64HasTheTestVectorsOfRfc4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

TEST(Html, EscapesEverythingAndClosesItsSections) {
  HtmlPage page("<script>", "\"a\" & b");
  page.section("one");
  page.table({"c<", {"x<", "y"}, {{"<b>", "2"}}});
  page.section("two");
  page.code("a && b");
  ASSERT_TRUE(page.picture(Image::filled(2, 2, 1, 0), "a \"quoted\" alt", "cap").ok());
  const std::string html = page.finish();
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_EQ(count_of(html, "<section>"), 2u);
  EXPECT_EQ(count_of(html, "</section>"), 2u);
  EXPECT_EQ(count_of(html, "<h1>"), 1u);
  EXPECT_NE(html.find("alt=\"a &quot;quoted&quot; alt\""), std::string::npos);
  EXPECT_NE(html.find("<th scope=\"row\">&lt;b&gt;</th><td>2</td>"), std::string::npos);
  EXPECT_EQ(html.find("http://"), std::string::npos) << "nothing may be fetched";
  EXPECT_EQ(html.find("https://"), std::string::npos);
}

TEST(Html, ColumnsOfWordsStartOnTheLeft) {
  HtmlPage page("T", "");
  page.table({"", {"name", "time", "note"}, {{"a", "-1.5 ± 2", ""}, {"b", "", "slow"}}});
  const std::string html = page.finish();
  EXPECT_NE(html.find("<th scope=\"col\">time</th><th scope=\"col\" class=\"words\">note</th>"),
            std::string::npos);
  EXPECT_NE(html.find("<td>-1.5 ± 2</td><td class=\"words\"></td>"), std::string::npos);
  EXPECT_NE(html.find("<td></td><td class=\"words\">slow</td>"), std::string::npos);
}

TEST(Records, CellsReadLikeNumbers) {
  EXPECT_EQ(cell_text(nullptr, 3), "–");
  const Json big(int64_t{1234567}), real(1234.5678), small(0.0123456), tiny(1e-9), flag(true);
  EXPECT_EQ(cell_text(&big, 3), "1,234,567");
  EXPECT_EQ(cell_text(&real, 3), "1,235");
  EXPECT_EQ(cell_text(&real, 6), "1,234.57");
  EXPECT_EQ(cell_text(&small, 3), "0.0123");
  EXPECT_EQ(cell_text(&tiny, 3), "1.00e-09");
  EXPECT_EQ(cell_text(&flag, 3), "yes");
}

class ReportFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        (std::filesystem::path(testing::TempDir()) / ("tarn_report_" + std::to_string(getpid())))
            .string();
    std::filesystem::remove_all(folder_);
    ASSERT_TRUE(make_directories(folder_).ok());
  }
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomic(folder_ + "/" + name, text).ok());
  }
  std::string folder_;
};

TEST_F(ReportFolder, ShowsWhatTheManifestNames) {
  write("bench.json", R"({"rows":[{"m":"a","t":{"first":0.5}},{"m":"b","t":{"first":2}}]})");
  write("log.jsonl",
        "{\"u\":1,\"l\":3.5,\"e\":\"t\"}\n{\"other\":1}\n{\"u\":2,\"l\":2.5,\"e\":\"t\"}\n"
        "{\"u\":2,\"l\":9,\"e\":\"v\"}\n{\"u\":3,\"l");
  ASSERT_TRUE(write_png(folder_ + "/p.png", Image::filled(4, 4, 1, 9)).ok());
  write("report.json", R"({"title":"T","sections":[{"heading":"H",
    "text":"\n\nwords\nof one\n\nand two\n",
    "tables":[{"file":"bench.json","columns":[{"key":"m"},{"key":"t.first","title":"first"}]}],
    "pictures":[{"file":"p.png","alt":"four by four"}],
    "curves":[{"title":"C","description":"d","x":"u","y":"l",
               "series":[{"file":"log.jsonl","name":"run","where":{"e":"t"}}]}]}]})");
  const Result<HtmlPage> page = build_report(folder_);
  ASSERT_TRUE(page.ok()) << page.error().to_string();
  const std::string text = page->finish();
  EXPECT_NE(text.find("<th scope=\"row\">a</th><td>0.500</td>"), std::string::npos);
  EXPECT_NE(text.find("<p>words\nof one</p>\n<p>and two\n</p>"), std::string::npos);
  EXPECT_NE(text.find("four by four"), std::string::npos);
  EXPECT_EQ(count_of(text, "<circle"), 2u) << "two complete records";
  ASSERT_EQ(page->figures().size(), 1u);
  EXPECT_EQ(page->figures()[0].name, "c");
  EXPECT_EQ(page->figures()[0].svg.rfind("<svg", 0), 0u);
  EXPECT_NE(text.find(page->figures()[0].svg), std::string::npos) << "the page has the same";
}

TEST_F(ReportFolder, WithoutManifestShowsEverything) {
  write("bench.json", R"({"rows":[{"mode_name":"a","speed":2.5}]})");
  ASSERT_TRUE(write_png(folder_ + "/p.png", Image::filled(4, 4, 1, 9)).ok());
  const std::string page = build_report(folder_).value().finish();
  EXPECT_NE(page.find("mode name"), std::string::npos);
  EXPECT_NE(page.find("data:image/png"), std::string::npos);
}

TEST_F(ReportFolder, ErrorsNameTheFileAndTheKey) {
  EXPECT_EQ(build_report(folder_ + "/none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(build_report(folder_).error().code, ErrorCode::kNotFound);
  write("report.json", R"({"title":"T","sections":[{"heading":"H","picture":[]}]})");
  const Result<HtmlPage> unknown = build_report(folder_);
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().to_string().find("sections[0]"), std::string::npos);
  EXPECT_NE(unknown.error().to_string().find("picture"), std::string::npos);
  write("report.json",
        R"({"title":"T","sections":[{"heading":"H","pictures":[{"file":"x.png","alt":"a"}]}]})");
  EXPECT_NE(build_report(folder_).error().to_string().find("x.png"), std::string::npos);
}

TEST_F(ReportFolder, FiltersThatCouldNeverMatchAreErrors) {
  write("log.jsonl", "{\"u\":1,\"l\":3.5,\"e\":\"t\"}\n{\"u\":2,\"l\":2.5,\"e\":\"t\"}\n");
  const auto with = [&](const std::string& filter) {
    write("report.json", R"({"title":"T","sections":[{"heading":"H","curves":[{"title":"C",
          "description":"d","x":"u","y":"l","series":[{"file":"log.jsonl","where":)" +
                             filter + "}]}]}]}");
    return build_report(folder_);
  };
  for (const char* filter : {"3", R"("e")", R"([{"e":"t"}])", "null"}) {
    const auto page = with(filter);
    ASSERT_FALSE(page.ok()) << filter;
    EXPECT_NE(page.error().to_string().find("series[0].where"), std::string::npos);
  }
  for (const char* filter : {R"({"e":3})", R"({"e":true})", R"({"e":null})", R"({"e":["t"]})",
                             R"({"e":{"t":1}})", R"({"l":3.5,"e":1})"}) {
    const auto page = with(filter);
    ASSERT_FALSE(page.ok()) << filter;
    EXPECT_NE(page.error().to_string().find("where.e"), std::string::npos)
        << page.error().to_string();
  }
  const auto whole = with(R"({"u":2.0,"e":"t"})");
  ASSERT_TRUE(whole.ok()) << whole.error().to_string();
  EXPECT_EQ(count_of(whole->finish(), "<circle"), 1u) << "2.0 is 2";
  EXPECT_TRUE(with(R"({"e":"other","absent":1})").ok()) << "what matches nothing yet may later";
}

}  // namespace
}  // namespace tarn::report
