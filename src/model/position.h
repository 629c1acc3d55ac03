#pragma once

#include <cstdint>

#include "model/config.h"

namespace tarn::model {

/// Amplitude of sinusoidal positions: √2·embedding_scale, so that their root mean square is that
/// of the token table at the start.
float sinusoid_amplitude(const ModelConfig& config);

/// row [dim] = the sinusoidal position vector: channel c is amplitude·sin (c even) or cos (c odd)
/// of position · 10000^(−2⌊c/2⌋/dim) (Vaswani 2017, §3.5, with an amplitude). Computed in double.
void sinusoidal_row(int64_t position, int64_t dim, float amplitude, float* row);

}  // namespace tarn::model
