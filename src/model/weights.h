#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "kernels/gemm.h"
#include "mixers/layer.h"
#include "model/config.h"

namespace tarn::model {

struct NormWeights {
  Buffer<float> weight;  // [D]
  Buffer<float> bias;    // [D], or empty for RMS norm
};

struct BlockWeights {
  NormWeights norm1;
  NormWeights norm2;  // like up and down, where the layer has an MLP
  std::unique_ptr<mixers::MixerWeights> mixer;
  kernels::PackedMatrix up, down;
};

/// All weights of a model in the form that the decoder reads.
struct DecoderWeights {
  Buffer<float> token;          // [vocabulary, D]; empty over frames
  kernels::PackedMatrix input;  // over frames: [D, features·stack]
  Buffer<float> position;       // learned: [max_tokens, D]; sinusoidal: its first rows; or empty
  std::vector<Buffer<float>> lagged;  // [vocabulary, D] each, in the order of embedding_lags
  NormWeights embedding_norm;         // where the config has one
  std::vector<BlockWeights> blocks;
  NormWeights final_norm;
  kernels::PackedMatrix head;
};

}  // namespace tarn::model
