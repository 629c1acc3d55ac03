#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "report/html.h"

namespace tarn::report {

/// One file that `make bench` wrote: bench/results/<host>/<commit>.json.
struct BenchRun {
  std::string host;         ///< name of its folder
  std::string commit;       ///< name of the file
  std::string time;         ///< UTC, as in the file
  Json document;            ///< whole
  std::vector<Json> lines;  ///< the figures of single operators: objects with "mixer" and "n"
};

/// The result files of a folder and of its direct subfolders, by host and then by time. Files that
/// are none (no "machine" object or no "results" array) are left out; so the result may be empty.
std::vector<BenchRun> read_bench_runs(const std::string& folder);

/// One page from result files (at least one): for each host its runs and the limits of the newest,
/// time, memory and percent of the limit against the length for each form, generation speeds, and
/// percent of the limit over the runs.
HtmlPage build_bench_report(const std::vector<BenchRun>& runs);

}  // namespace tarn::report
