#pragma once

#include <string>

namespace tarn::cli {

/// Path of this program, or "" where the system does not say.
std::string own_path();
/// Path of tarn-train: beside this program, else on PATH; "" when it is in neither.
std::string find_trainer();

}  // namespace tarn::cli
