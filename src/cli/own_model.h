#pragma once

#include <memory>

#include "base/result.h"
#include "model/model.h"

namespace tarn::cli {

/// Name of the model that is part of the program: models/text-bytes.
constexpr const char* kOwnModelName = "text-bytes";

/// That model. Cost: as for a folder of it, 4 MB are read from the program's own image.
Result<std::shared_ptr<const model::Model>> load_own_model(model::Model::Options options);

}  // namespace tarn::cli
