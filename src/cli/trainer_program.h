#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace tarn::cli {

/// Path of this program, or "" where the system does not say.
std::string own_path();
/// Path of tarn-train: beside this program, else on PATH; "" when it is in neither.
std::string find_trainer();
/// Becomes tarn-train, with `arguments` behind `subcommand`; returns only when that is impossible.
Status become_trainer(const std::string& subcommand, const std::vector<std::string>& arguments);

}  // namespace tarn::cli
