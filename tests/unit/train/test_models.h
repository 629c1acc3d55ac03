#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "train/batches.h"
#include "train/config.h"

namespace tarn::train {

/// A tiny model of `mixer` (its config object without the name), placement "pre" or "post"; with
/// learned positions it also has embedding lags, the last longer than any sequence.
inline std::string small_model_text(const std::string& mixer, const std::string& placement,
                                    const std::string& head, const std::string& position,
                                    const std::string& activation = "gelu",
                                    const std::string& norm = "layer_norm") {
  return R"({"format": "tarn-model", "format_version": 1, "modality": "tokens", "vocabulary": 13,
             "start_token": 12, "model_dim": 24, "max_tokens": 40, "position": {"kind": ")" +
         position + R"("}, )" + (position == "learned" ? R"("embedding_lags": [2, 5, 50], )" : "") +
         R"("embedding_scale": 0.5, "norm": {"kind": ")" + norm + R"(", "placement": ")" +
         placement +
         R"(", "eps": 1e-5, "final": true},
             "layers": [{"repeat": 2, "mixer": )" +
         mixer + R"(, "mlp": {"hidden_dim": 40, "activation": ")" + activation +
         R"("}}], "head": )" + head + "}";
}

inline constexpr const char* kSmallLinear =
    R"({"name": "linear_attention", "num_heads": 2, "key_dim": 9, "value_dim": 7})";
inline constexpr const char* kSmallSoftmax =
    R"({"name": "softmax_attention", "num_heads": 4, "num_kv_heads": 2, "key_dim": 6})";

inline model::ModelConfig parse_model(const std::string& text) {
  const Result<Json> json = parse_json(text, "test");
  TARN_CHECK(json.ok());
  Result<model::ModelConfig> config = model::parse_model_config(*json, "test");
  TARN_CHECK(config.ok());
  return std::move(config).value();
}

/// A tiny encoder over frames with layers that see both sides.
inline std::string small_frames_text(const std::string& position) {
  return R"({"format": "tarn-model", "format_version": 1, "modality": "frames",
             "frames": {"features": 39, "stack": 2}, "model_dim": 16, "max_tokens": 60,
             "position": {"kind": ")" +
         position + R"("}, "embedding_scale": 0.3,
             "norm": {"kind": "layer_norm", "placement": "pre"},
             "layers": [{"mixer": {"name": "softmax_attention", "num_heads": 2, "key_dim": 6,
                                   "causal": false}, "mlp": {"hidden_dim": 20, "activation": "gelu"}},
                        {"mixer": {"name": "bidirectional", "mixer":
                            {"name": "linear_attention", "num_heads": 2, "key_dim": 5}},
                         "mlp": null}],
             "head": {"kind": "ctc", "classes": 7}})";
}

/// A packed batch of random frames, of `lengths` rows each; three labels of 1 … 6 per sequence.
inline Batch random_frames(const model::ModelConfig& config, const std::vector<int64_t>& lengths) {
  Batch batch;
  batch.count = static_cast<int64_t>(lengths.size());
  batch.lengths = lengths;
  Philox random{8, 8};
  for (int64_t i = 0; i < batch.rows() * config.input_width(); ++i) {
    batch.frames.push_back(random.next_normal());
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    auto& labels = batch.labels.emplace_back();
    for (int n = 0; n < 3; ++n) labels.push_back(1 + static_cast<int32_t>(random.next_below(6)));
  }
  batch.counted = 3 * batch.count;
  return batch;
}

/// A training config for the copy task that takes milliseconds per update.
inline Json small_training_json(const std::string& mixer) {
  const std::string text =
      R"({"model": )" +
      small_model_text(mixer, "pre", R"({"kind": "categorical", "classes": 12})", "learned") +
      R"(, "data": {"kind": "copy", "max_symbols": 8, "epoch_sequences": 40},
          "training": {"seed": 3, "batch_size": 4, "updates": 20, "precision": "f32",
            "optimiser": {"kind": "radam", "learning_rate": 0.003},
            "schedule": {"kind": "cosine", "warm_up": 3}, "average_decay": 0.9,
            "evaluate_limit": 8, "log_every": 5}})";
  Result<Json> json = parse_json(text, "test");
  TARN_CHECK(json.ok());
  return std::move(json).value();
}

}  // namespace tarn::train
