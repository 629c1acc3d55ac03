#pragma once

#include <string>

#include "base/result.h"
#include "report/html.h"

namespace tarn::report {

/// Builds the page that `tarn report FOLDER` writes: pictures, curves and tables of a folder.
/// `FOLDER/report.json` says what to show (docs/cli.md, "report"); without it the page shows every
/// *.png, every *.jsonl that looks like a training log and every *.json with a list of "rows", or
/// for result files of `make bench`, here or in subfolders, the page of build_bench_report.
/// Errors: what a file named by report.json lacks, with its path; kNotFound for an empty folder.
Result<HtmlPage> build_report(const std::string& folder);

}  // namespace tarn::report
