#include "report/report.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "base/file.h"
#include "cli/command.h"

namespace tarn::cli {
namespace {

struct Options {
  std::string folder;
  std::string out;
  std::string figures;
};

Status run(const Options& options, Context& context) {
  TARN_ASSIGN(const report::HtmlPage built, report::build_report(options.folder));
  const std::string page = built.finish();
  const std::string path = options.out.empty()
                               ? (std::filesystem::path(options.folder) / "report.html").string()
                               : options.out;
  TARN_RETURN_IF_ERROR(write_file_atomic(path, page));
  Json json;
  if (!options.figures.empty()) {
    Json::Array files;
    std::set<std::string> names;
    TARN_RETURN_IF_ERROR(make_directories(options.figures));
    for (const report::Figure& figure : built.figures()) {
      if (!names.insert(figure.name).second) {
        return invalid_argument(
            fmt::format("two charts of the page would be called \"{}.svg\"", figure.name),
            "--figures");
      }
      const std::string file =
          (std::filesystem::path(options.figures) / (figure.name + ".svg")).string();
      TARN_RETURN_IF_ERROR(write_file_atomic(file, figure.svg));
      files.push_back(Json(file));
    }
    json.set("figures", std::move(files));
  }
  json.set("out", path);
  json.set("bytes", static_cast<int64_t>(page.size()));
  context.console.document(json);
  context.console.text("wrote " + path);
  return {};
}

}  // namespace

void add_report(Command& program, Selection& selection) {
  auto options = std::make_shared<Options>();
  Command command = program.add(selection, "report", "One HTML page from a folder of results",
                                [options](Context& context) { return run(*options, context); });
  command.positional("folder", options->folder, "DIR",
                     "pictures, logs and results; see docs/cli.md");
  command.text("--out", options->out, "FILE", "the page (default: DIR/report.html)");
  command.text("--figures", options->figures, "FOLDER",
               "also write every chart there as an SVG file, named after its title");
}

}  // namespace tarn::cli
