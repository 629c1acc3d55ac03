#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tarn::report {

/// Objects of a file: the lines of a *.jsonl file, or the "rows" of a *.json document (the document
/// itself when it has none). A last line cut short by a crash is left out.
Result<std::vector<Json>> read_records(const std::string& path);

/// The value under a dotted key such as "ms_per_token.first", or null.
const Json* find_path(const Json& object, const std::string& dotted);
/// A number of either kind; false when `value` is null or no number.
bool as_number(const Json* value, double& number);
/// A cell's text: numbers with `digits` significant digits and thousands separated, "yes"/"no",
/// "–" for what is absent.
std::string cell_text(const Json* value, int digits);

}  // namespace tarn::report
