#include "model/embedding.h"

#include <cstring>

#include "base/check.h"
#include "model/position.h"

namespace tarn::model {
namespace {

void add(int64_t count, const float* a, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] += a[i];
}

/// out = embedding + the row of `position`.
void add_position(const ModelConfig& config, const DecoderWeights& weights, int64_t position,
                  const float* embedding, float* out) {
  const int64_t dim = config.model_dim;
  const int64_t table_rows = weights.position.size() / dim;
  if (config.position == PositionKind::kNone) {
    std::memcpy(out, embedding, static_cast<size_t>(dim) * sizeof(float));
  } else if (position < table_rows) {
    const float* place = weights.position.data() + position * dim;
    for (int64_t c = 0; c < dim; ++c) out[c] = embedding[c] + place[c];
  } else {
    TARN_DCHECK(config.position == PositionKind::kSinusoidal);
    sinusoidal_row(position, dim, sinusoid_amplitude(config), out);
    add(dim, embedding, out);
  }
}

void embed_frames(const ModelConfig& config, const DecoderWeights& weights, const TokenBatch& batch,
                  int64_t first, int64_t end, float* x, ThreadPool* pool) {
  const int64_t width = config.input_width();
  const int64_t dim = config.model_dim;
  const int64_t first_row = batch.sequences.begin[first];
  const int64_t rows = batch.sequences.begin[end - 1] + batch.sequences.length[end - 1] - first_row;
  weights.input.multiply(rows, batch.frames + first_row * width, width, x, dim,
                         kernels::Activation::kNone, false, pool);
  if (config.position == PositionKind::kNone) return;
  for (int64_t i = first; i < end; ++i) {
    const int64_t start = batch.positions != nullptr ? batch.positions[i] : 0;
    for (int64_t r = 0; r < batch.sequences.length[i]; ++r, x += dim) {
      add_position(config, weights, start + r, x, x);
    }
  }
}

/// The input `lag` steps before input `row` of a sequence.
int64_t earlier_input(const ModelConfig& config, const int32_t* inputs, const float* history,
                      int64_t row, int64_t lag) {
  if (row >= lag) return inputs[row - lag];
  return history != nullptr ? static_cast<int64_t>(history[lag - row - 1]) : config.start_token;
}

}  // namespace

mixers::StateSpec input_history_spec(const ModelConfig& config) {
  mixers::StateSpec spec;
  spec.name = "input_history";
  spec.shape = {config.embedding_lags.back()};
  spec.initial_value = static_cast<float>(config.start_token);  // exact: symbols are below 2^24
  spec.symbols = config.vocabulary;
  return spec;
}

void embed(const ModelConfig& config, const DecoderWeights& weights, const TokenBatch& batch,
           float* const* history, int64_t first, int64_t end, float* x, ThreadPool* pool) {
  const int64_t dim = config.model_dim;
  if (config.modality == Modality::kFrames) {
    embed_frames(config, weights, batch, first, end, x, pool);
    return;
  }
  for (int64_t i = first; i < end; ++i) {
    const int64_t start = batch.positions != nullptr ? batch.positions[i] : 0;
    const int32_t* inputs = batch.tokens + batch.sequences.begin[i];
    for (int64_t r = 0; r < batch.sequences.length[i]; ++r, x += dim) {
      TARN_DCHECK(inputs[r] >= 0 && inputs[r] < config.vocabulary);
      add_position(config, weights, start + r, weights.token.data() + inputs[r] * dim, x);
      for (size_t j = 0; j < weights.lagged.size(); ++j) {
        const int64_t input = earlier_input(
            config, inputs, history != nullptr ? history[i] : nullptr, r, config.embedding_lags[j]);
        TARN_DCHECK(input >= 0 && input < config.vocabulary);
        add(dim, weights.lagged[j].data() + input * dim, x);
      }
    }
  }
}

void update_history(const ModelConfig& config, const TokenBatch& batch, float* const* history,
                    int64_t first, int64_t end) {
  const int64_t size = config.embedding_lags.back();
  for (int64_t i = first; i < end; ++i) {
    const int64_t length = batch.sequences.length[i];
    const int32_t* inputs = batch.tokens + batch.sequences.begin[i];
    float* recent = history[i];
    for (int64_t j = size - 1; j >= 0; --j) {
      recent[j] = j < length ? static_cast<float>(inputs[length - 1 - j]) : recent[j - length];
    }
  }
}

}  // namespace tarn::model
