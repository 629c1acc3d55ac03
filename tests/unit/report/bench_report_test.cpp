#include "report/bench_report.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "report/report.h"

namespace tarn::report {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Json line(const char* mixer, int64_t tokens, double ms, double percent) {
  Json json;
  json.set("mixer", mixer);
  json.set("form", "forward");
  json.set("dtype", "f32");
  json.set("threads", 1);
  json.set("n", tokens);
  json.set("ms_median", ms);
  json.set("percent_of_roof", percent);
  json.set("peak_extra_bytes", 100 * tokens);
  return json;
}

/// A result file with two mechanisms at two lengths; `speed` scales their percentages.
std::string result_file(const char* time, double speed) {
  Json machine;
  machine.set("cpu", "a <fast> one");
  machine.set("threads", 2);
  Json figure;
  figure.set("kind", "f32_fma");
  figure.set("threads", 1);
  figure.set("value", 123.0);
  Json missing;
  missing.set("kind", "bf16_amx");
  missing.set("value", Json());
  Json result;
  result.set("output",
             Json::Array{line("one", 64, 1, 40 * speed), line("one", 128, 2, 40 * speed),
                         line("two", 64, 1, 20 * speed), line("two", 128, 4, 20 * speed)});
  Json document;
  document.set("time", time);
  document.set("machine", std::move(machine));
  document.set("roof", Json::Array{std::move(figure), std::move(missing)});
  document.set("results", Json::Array{std::move(result)});
  return document.dump();
}

class BenchReport : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("tarn_bench_report_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "host");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomic((folder_ / name).string(), text).ok());
  }
  std::filesystem::path folder_;
};

TEST_F(BenchReport, RunsAreSortedByTimeAndOtherFilesLeftOut) {
  write("host/aaa.json", result_file("2026-02-01", 2));
  write("host/bbb.json", result_file("2026-01-01", 1));
  write("host/broken.json", "{");
  write("host/other.json", R"({"rows": []})");
  write("host/notes.txt", "no result");
  const std::vector<BenchRun> runs = read_bench_runs(folder_.string());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].commit, "bbb");
  EXPECT_EQ(runs[1].commit, "aaa");
  EXPECT_EQ(runs[0].host, "host");
  EXPECT_EQ(runs[0].lines.size(), 4u);
  const std::vector<BenchRun> same = read_bench_runs((folder_ / "host").string() + "/");
  ASSERT_EQ(same.size(), 2u);
  EXPECT_EQ(same[0].host, "host") << "a slash at the end changes no name";
}

TEST_F(BenchReport, DrawsTimeMemoryPercentAndHistory) {
  write("host/aaa.json", result_file("2026-02-01", 2));
  write("host/bbb.json", result_file("2026-01-01", 1));
  const Result<HtmlPage> page = build_report(folder_.string());
  ASSERT_TRUE(page.ok()) << page.error().to_string();
  const std::string html = page->finish();
  EXPECT_EQ(count_of(html, "<svg"), 4u);
  EXPECT_EQ(count_of(html, "<polyline"), 8u) << "two mechanisms in each chart";
  EXPECT_NE(html.find("absent"), std::string::npos);
  EXPECT_NE(html.find("a &lt;fast&gt; one"), std::string::npos);
  EXPECT_LT(html.find("bbb"), html.find("2026-02-01")) << "the older run comes first";
  EXPECT_NE(html.find("n = 128"), std::string::npos) << "history takes the longest sequences";
}

TEST_F(BenchReport, OneLengthGivesNoCurve) {
  Json document = parse_json(result_file("2026-01-01", 1), "").value();
  Json result;
  result.set("output", Json::Array{line("one", 64, 1, 40)});
  document.set("results", Json::Array{std::move(result)});
  write("host/aaa.json", document.dump());
  const std::string html = build_report(folder_.string()).value().finish();
  EXPECT_EQ(count_of(html, "<svg"), 1u) << "only the history";
}

TEST_F(BenchReport, AManifestWins) {
  write("host/aaa.json", result_file("2026-01-01", 1));
  write("report.json", R"({"title": "mine", "sections": []})");
  EXPECT_NE(build_report(folder_.string()).value().finish().find("<h1>mine</h1>"),
            std::string::npos);
}

}  // namespace
}  // namespace tarn::report
