#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "model/model.h"

namespace tarn::cli {

struct FramesEvaluation {
  std::string data;
  std::string split;
  std::vector<std::string> overrides;  ///< of {"data": …}, e.g. data.join=2400
  int64_t limit = 0;                   ///< 0: the whole split
  int64_t beam = 0;
  int64_t stream = 0;  ///< frames heard at a time; 0: whole utterances
  int64_t threads = 1;
  bool transcripts = false;  ///< also as text what was said and heard
};

/// `tarn eval` of a model over frames: phone errors on a split of its data set.
Status eval_frames(std::shared_ptr<const model::Model> model, const FramesEvaluation& options,
                   Context& context);

}  // namespace tarn::cli
