#pragma once

#include <cstdint>
#include <vector>

#include "audio/frontend_config.h"

namespace tarn::audio {

/// A triangle over the bins of a transform; weights of bins first, first + 1, ….
struct MelBand {
  int64_t first = 0;
  std::vector<float> weights;  ///< empty: no bin lies within the band
};

/// `mels` triangles whose corners are evenly spaced from low_hz to high_hz in mel(f) =
/// 1127 ln(1 + f / 700); each begins at the middle of the one before and ends at the middle of the next,
/// and is straight in mel. Their height is 1.
/// Source: HTK and Kaldi (mel-computations.cc); deviations: none.
std::vector<MelBand> mel_bands(const FrontendConfig& config);

}  // namespace tarn::audio
