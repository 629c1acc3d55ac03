#pragma once

#include <cstdint>
#include <string>

#include "base/buffer.h"
#include "base/json.h"
#include "base/result.h"
#include "train/config.h"
#include "train/optimiser.h"
#include "train/parameters.h"

namespace tarn::train {

/// What training needs to continue bit for bit, besides its config: one file, replaced atomically,
/// so that a kill at any moment leaves the previous one or the new one whole. Format: safetensors
/// (docs/formats/checkpoint.md): per parameter NAME, first_moment/NAME, second_moment/NAME and,
/// when weights are averaged, average/NAME, all f32; metadata: format, update,
/// optimiser_updates, tokens_seen, log_bytes, seconds, config.
struct Checkpoint {
  int64_t update = 0;       ///< updates done
  int64_t tokens_seen = 0;  ///< input tokens so far
  int64_t log_bytes = 0;    ///< length of log.jsonl that belongs to this state
  double seconds = 0.0;     ///< spent training so far
};

/// `average` may be empty. Creates the folder of `path`.
Status save_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                       const TrainConfig& config, const ParameterBuffers& parameters,
                       Optimiser& optimiser, const Buffer<float>& average);

/// Fills parameters, optimiser and average. The checkpoint must be of the same config, except for
/// the keys of "training" that do not change what an update computes (updates, evaluate_every,
/// evaluate_limit, checkpoint_every_seconds, log_every, export_dtype); the error names the first
/// part that differs. On error the buffers are unspecified.
Result<Checkpoint> load_checkpoint(const std::string& path, const TrainConfig& config,
                                   ParameterBuffers& parameters, Optimiser& optimiser,
                                   Buffer<float>& average);

/// Writes config.json and model.safetensors, each atomically, so that `folder` is a model.
/// `values` is laid out as `parameters`.
Status export_model(const std::string& folder, const TrainConfig& config,
                    const ParameterBuffers& parameters, const Buffer<float>& values,
                    const Checkpoint& checkpoint);

}  // namespace tarn::train
