#pragma once

#include <memory>
#include <string>

#include "data/frames.h"
#include "train/batches.h"

namespace tarn::train {

/// open_batches of data that is frames.
Result<std::unique_ptr<BatchSource>> open_frame_batches(const TrainConfig& config,
                                                        const std::string& directory,
                                                        data::Split split);

/// Masks parts of an utterance [length, features], the channels and their differences, with zeros, the features' mean (SpecAugment, Park
/// 2019, arXiv 1904.08779, section 2, without time warping): time_masks runs of up to time_share of the
/// frames, and feature_masks runs of up to feature_width channels, each with its differences. A pure
/// function of (seed, stream).
void mask_frames(const AugmentConfig& augment, int64_t channels, int64_t features, uint64_t seed,
                 uint64_t stream, std::vector<float>& frames);

}  // namespace tarn::train
