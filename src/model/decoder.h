#pragma once

#include "base/arena.h"
#include "base/threads.h"
#include "model/model.h"
#include "model/weights.h"

namespace tarn::model {

/// Model::forward on unpacked parts (see there). Sequences are taken in groups of about a thousand
/// rows, so scratch does not grow with their number; groups go to threads when there are enough
/// sequences, otherwise the kernels share each group's rows among the threads.
void run_decoder(const ModelConfig& config, const DecoderWeights& weights, const TokenBatch& batch,
                 LayerStates states, mixers::Form form, Outputs outputs, float* output,
                 ThreadPool* pool, Arena& arena) noexcept;

}  // namespace tarn::model
