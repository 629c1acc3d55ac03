#include "report/report.h"

#include <filesystem>
#include <memory>

#include "base/file.h"
#include "cli/command.h"

namespace tarn::cli {
namespace {

struct Options {
  std::string folder;
  std::string out;
};

Status run(const Options& options, Context& context) {
  TARN_ASSIGN(const std::string page, report::build_report(options.folder));
  const std::string path = options.out.empty()
                               ? (std::filesystem::path(options.folder) / "report.html").string()
                               : options.out;
  TARN_RETURN_IF_ERROR(write_file_atomic(path, page));
  Json json;
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
}

}  // namespace tarn::cli
