#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "model/config.h"

namespace tarn::model {

/// A small valid config document; tests change members of it.
inline Json small_config() {
  return *parse_json(R"({
    "format": "tarn-model", "format_version": 1, "modality": "tokens",
    "vocabulary": 11, "start_token": 10, "model_dim": 12, "max_tokens": 40,
    "position": {"kind": "learned"}, "embedding_scale": 0.5,
    "norm": {"kind": "layer_norm", "placement": "post", "eps": 1e-5, "final": true},
    "layers": [{"repeat": 2,
                "mixer": {"name": "linear_attention", "num_heads": 2, "key_dim": 5, "value_dim": 3},
                "mlp": {"hidden_dim": 17, "activation": "gelu"}}],
    "head": {"kind": "categorical", "classes": 10}
  })",
                     "test");
}

/// `text` parsed as JSON.
inline Json json_of(const std::string& text) {
  Result<Json> json = parse_json(text, "test");
  EXPECT_TRUE(json.ok()) << text;
  return *json;
}

inline ModelConfig config_of(const Json& json) {
  Result<ModelConfig> config = parse_model_config(json, "config.json");
  EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().to_string());
  return *config;
}

}  // namespace tarn::model
