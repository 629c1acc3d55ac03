#pragma once

#include "mixers/mixer.h"
#include "model/model.h"
#include "model/weights.h"

namespace tarn::model {

/// The embedding's state where the config has embedding_lags: [largest lag], the latest inputs,
/// newest first; the start token stands for inputs before the first.
mixers::StateSpec input_history_spec(const ModelConfig& config);

/// Embedding of every row of sequences [first, end) of `batch`, into `x` from their first row on:
///   x = token[input] + position[p] + Σ_j lagged_j[the input lag_j steps back]
/// summed in that order, [rows, D] dense. `history` points to each sequence's history before the
/// call (index: the batch's), or is null: then sequences are whole and begin with the start token.
/// Over frames x = W·frames + b + position[p].
void embed(const ModelConfig& config, const DecoderWeights& weights, const TokenBatch& batch,
           float* const* history, int64_t first, int64_t end, float* x, ThreadPool* pool);

/// Moves the inputs of sequences [first, end) into their histories.
void update_history(const ModelConfig& config, const TokenBatch& batch, float* const* history,
                    int64_t first, int64_t end);

}  // namespace tarn::model
