#include "model/config.h"

#include <gtest/gtest.h>

#include "conformance/layer_stack.h"
#include "mixers/mixer.h"
#include "unit/model/configs.h"

namespace tarn::model {
namespace {

std::string error_of(const Json& json) {
  const Result<ModelConfig> config = parse_model_config(json, "config.json");
  return config.ok() ? "" : config.error().to_string();
}

/// The error after replacing a top-level member.
std::string error_with(const char* key, const std::string& value) {
  Json json = small_config();
  json.set(key, json_of(value));
  return error_of(json);
}

std::string error_without(const std::string& key) {
  const Json full = small_config();
  Json json = Json::Object{};
  for (const Json::Member& member : *full.as_object()) {
    if (member.first != key) json.set(member.first, member.second);
  }
  return error_of(json);
}

TEST(ModelConfig, ReadsEveryField) {
  Json json = small_config();
  json.set("modality", "image");
  json.set("image", json_of(R"({"width": 4, "height": 5, "channels": 2})"));
  json.set("vocabulary", 257);
  json.set("start_token", 256);
  json.set("position", json_of(R"({"kind": "learned", "grid_width": 4})"));
  json.set("embedding_lags", json_of("[1, 4, 65536]"));
  json.set("norm", json_of(R"({"kind":"rms_norm","placement":"pre","eps":1e-6,"final":false})"));
  json.set("head", json_of(R"({"kind":"discretised_logistic_mixture","components":3})"));
  const ModelConfig config = config_of(json);
  EXPECT_EQ(config.modality, Modality::kImage);
  EXPECT_EQ(config.image_width, 4);
  EXPECT_EQ(config.image_height, 5);
  EXPECT_EQ(config.image_channels, 2);
  EXPECT_EQ(config.vocabulary, 257);
  EXPECT_EQ(config.start_token, 256);
  EXPECT_EQ(config.model_dim, 12);
  EXPECT_EQ(config.max_tokens, 40);
  EXPECT_EQ(config.position, PositionKind::kLearned);
  EXPECT_EQ(config.position_period, 4);
  EXPECT_EQ(config.embedding_scale, 0.5f);
  EXPECT_EQ(config.embedding_lags, (std::vector<int64_t>{1, 4, 65536}));
  EXPECT_EQ(config.norm, NormKind::kRmsNorm);
  EXPECT_EQ(config.placement, NormPlacement::kPre);
  EXPECT_EQ(config.norm_eps, 1e-6f);
  EXPECT_FALSE(config.final_norm);
  ASSERT_EQ(config.layers.size(), 2u);
  EXPECT_STREQ(config.layers[1].mixer->name, "linear_attention");
  EXPECT_EQ(config.layers[1].mlp_hidden_dim, 17);
  EXPECT_EQ(config.layers[1].mlp_activation, kernels::Activation::kGelu);
  EXPECT_EQ(config.head.kind, HeadKind::kDiscretisedLogisticMixture);
  EXPECT_EQ(config.head.components, 3);
  EXPECT_EQ(config.head.classes, 256);
  EXPECT_EQ(config.head.output_dim(), 9);
}

TEST(ModelConfig, WritesWhatParsesToTheSame) {
  for (const mixers::MixerDef* mixer : mixers::all_mixers()) {
    for (const std::string& example : mixer->example_configs()) {
      Json json = small_config();
      Json layer = (*json.find("layers")->as_array())[0];
      Json::Array layers;
      for (const Json& mixer_json : conformance::layer_stack(*mixer, example, 16)) {
        layer.set("mixer", mixer_json);
        layers.push_back(layer);
      }
      Json other = layer;
      other.set("mlp", json_of(R"({"hidden_dim": 3, "activation": "relu"})"));
      json.set("model_dim", 16);
      Json without = layer;
      without.set("mlp", Json());
      for (const Json& next : {other, layer, without}) layers.push_back(next);
      json.set("layers", layers);
      json.set("embedding_norm", true);
      const Json written = to_json(config_of(json));
      EXPECT_EQ(written.find("layers")->as_array()->size(), layers.size());
      EXPECT_TRUE(written.find("layers")->as_array()->back().find("mlp")->is_null());
      EXPECT_EQ(*written.find("embedding_norm"), Json(true));
      EXPECT_EQ(to_json(config_of(json_of(written.dump(2)))), written) << written.dump();
      EXPECT_EQ(*written.find("embedding_scale"), Json(0.5));
      EXPECT_EQ(*written.find("norm")->find("eps"), Json(1e-5));
    }
  }
}

TEST(ModelConfig, EveryRequiredKeyIsMissed) {
  for (const char* key : {"format", "format_version", "modality", "vocabulary", "start_token",
                          "model_dim", "max_tokens", "position", "norm", "layers", "head"}) {
    EXPECT_EQ(error_without(key), std::string("config.json: ") + key + ": is missing");
  }
  EXPECT_EQ(error_without("embedding_scale"), "");
}

TEST(ModelConfig, ErrorsNameTheKey) {
  struct Case {
    const char* key;
    const char* value;
    const char* error;
  };
  const Case cases[] = {
      {"format", "\"gguf\"", "format: must be one of tarn-model, got \"gguf\""},
      {"format_version", "2", "format_version: is \"2\", this build reads version 1"},
      {"modality", "\"video\"",
       "modality: must be one of tokens, bytes, image, frames, got \"video\""},
      {"modality", "\"image\"", "image: is missing"},
      {"modality", "\"bytes\"", "head: must be categorical with 256 classes for modality bytes"},
      {"image", "{\"width\":1,\"height\":1}", "image: is only for modality image"},
      {"modality", "\"frames\"", "frames: is missing"},
      {"frames", "{\"features\":1}", "frames: is only for modality frames"},
      {"head", "{\"kind\":\"ctc\",\"classes\":3}", "head.kind: ctc is only for modality frames"},
      {"vocabulary", "0", "vocabulary: must be an integer from 1 to 16777216, got 0"},
      {"vocabulary", "10", "start_token: is 10, must be below the vocabulary of 10"},
      {"vocabulary", "1000000000000",
       "vocabulary: must be an integer from 1 to 16777216, got 1000000000000"},
      {"start_token", "-1", "start_token: must be an integer from 0 to 16777215, got -1"},
      {"model_dim", "65537", "model_dim: must be an integer from 1 to 65536, got 65537"},
      {"model_dim", "12.5", "model_dim: must be an integer from 1 to 65536, got 12.5"},
      {"max_tokens", "0", "max_tokens: must be at least 1 with learned positions, got 0"},
      {"max_tokens", "2147483649",
       "max_tokens: must be an integer from 0 to 2147483648, got 2147483649"},
      {"position", "{\"kind\":\"rotary\"}",
       "position.kind: must be one of none, learned, sinusoidal, got \"rotary\""},
      {"position", "{\"kind\":\"none\",\"grid_width\":4}",
       "position.grid_width: is only for learned positions"},
      {"position", "3", "position: must be an object, got 3"},
      {"embedding_lags", "[]",
       "embedding_lags: must be a list of increasing whole numbers from 1 to 65536, got \"[]\""},
      {"embedding_lags", "[2,2]",
       "embedding_lags: must be a list of increasing whole numbers from 1 to 65536, got \"[2,2]\""},
      {"embedding_lags", "[0]",
       "embedding_lags: must be a list of increasing whole numbers from 1 to 65536, got \"[0]\""},
      {"embedding_lags", "[1.5]",
       "embedding_lags: must be a list of increasing whole numbers from 1 to 65536, got \"[1.5]\""},
      {"embedding_lags", "[65537]",
       "embedding_lags: must be a list of increasing whole numbers from 1 to 65536, got "
       "\"[65537]\""},
      {"embedding_lags", "3",
       "embedding_lags: must be a list of increasing whole numbers from 1 to 65536, got \"3\""},
      {"embedding_norm", "1", "embedding_norm: must be true or false, got 1"},
      {"embedding_scale", "-1", "embedding_scale: must be a number from 0 to 1000, got -1"},
      {"norm", "{\"kind\":\"layer_norm\",\"placement\":\"post\",\"eps\":0}",
       "norm.eps: must be a number from 1e-12 to 1, got 0"},
      {"norm", "{\"kind\":\"layer_norm\",\"placement\":\"mid\"}",
       "norm.placement: must be one of post, pre, got \"mid\""},
      {"layers", "[]", "layers: must be a non-empty array of layers"},
      {"layers", "{}", "layers: must be a non-empty array of layers"},
      {"layers", "[7]", "layers[0]: must be an object, got 7"},
      {"head", "{\"kind\":\"categorical\",\"classes\":12}",
       "head.classes: is 12, but what the model predicts must be in its vocabulary of 11"},
      {"head", "{\"kind\":\"discretised_logistic_mixture\",\"levels\":11,\"components\":0}",
       "head.components: must be an integer from 1 to 1024, got 0"},
      {"colour", "1",
       "unknown key \"colour\"; known keys: format, format_version, modality, image, frames, "
       "frontend, vocabulary, "
       "start_token, model_dim, max_tokens, position, embedding_lags, embedding_scale, "
       "embedding_norm, norm, "
       "layers, "
       "head"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(error_with(c.key, c.value), std::string("config.json: ") + c.error) << c.key;
  }
}

Json frames_config() {
  Json json = small_config();
  Json::Object members;
  for (const Json::Member& member : *json.as_object()) {
    if (member.first != "vocabulary" && member.first != "start_token") members.push_back(member);
  }
  json = Json(std::move(members));
  json.set("modality", "frames");
  json.set("frames", json_of(R"({"features": 5, "stack": 3})"));
  json.set("head", json_of(R"({"kind": "ctc", "classes": 3, "symbols": ["a", "b"]})"));
  return json;
}

TEST(ModelConfig, FramesHaveRowsInsteadOfSymbols) {
  const ModelConfig config = config_of(frames_config());
  EXPECT_EQ(config.modality, Modality::kFrames);
  EXPECT_EQ(config.input_width(), 15);
  EXPECT_EQ(config.input_rows(0), 0);
  EXPECT_EQ(config.input_rows(3), 1);
  EXPECT_EQ(config.input_rows(4), 2);
  EXPECT_EQ(config.head.kind, HeadKind::kCtc);
  EXPECT_EQ(config.head.output_dim(), 3);
  EXPECT_EQ(config.head.symbols, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(to_json(config_of(to_json(config))), to_json(config));
  EXPECT_EQ(to_json(config).find("vocabulary"), nullptr);
  EXPECT_EQ(to_json(config).find("frontend"), nullptr);
  Json sound = frames_config();
  sound.set("frontend", json_of(R"({"sample_rate": 8000, "mels": 5})"));
  const ModelConfig heard = config_of(sound);
  ASSERT_TRUE(heard.frontend.has_value());
  EXPECT_EQ(to_json(config_of(to_json(heard))), to_json(heard));
  EXPECT_NE(to_json(heard), to_json(config));
}

TEST(ModelConfig, FramesErrorsNameTheKey) {
  const struct {
    const char* key;
    const char* value;
    const char* error;
  } cases[] = {
      {"frontend", R"({"sample_rate": 8000, "mels": 4})",
       "frames: has 5 features, but the frontend makes 4"},
      {"frontend", R"({"sample_rate": 8000, "mels": 5, "colour": 1})",
       "frontend: unknown key \"colour\"; known keys: sample_rate, window_ms, hop_ms, window, "
       "pre_emphasis, remove_offset, mels, low_hz, high_hz, differences, normalisation"},
      {"frontend", R"({"mels": 5})", "frontend.sample_rate: is missing"},
      {"vocabulary", "5", "vocabulary: is not for modality frames"},
      {"start_token", "0", "start_token: is not for modality frames"},
      {"embedding_lags", "[1]", "embedding_lags: is not for modality frames"},
      {"frames", R"({"stack": 2})", "frames.features: is missing"},
      {"frames", R"({"features": 0})",
       "frames.features: must be an integer from 1 to 65536, got 0"},
      {"frames", R"({"features": 2, "stack": 65})",
       "frames.stack: must be an integer from 1 to 64, got 65"},
      {"frames", R"({"features": 2, "rate": 1})",
       "frames: unknown key \"rate\"; known keys: features, stack"},
      {"head", R"({"kind": "categorical", "classes": 3})",
       "head.kind: must be ctc for modality frames"},
      {"head", R"({"kind": "ctc", "classes": 1})",
       "head.classes: must be an integer from 2 to 65536, got 1"},
      {"head", R"({"kind": "ctc", "classes": 4, "symbols": ["a", "b"]})",
       "head.symbols: must be the 3 different names of classes 1 to 3, of 1 to 64 bytes each, got "
       "\"[\\\"a\\\",\\\"b\\\"]\""},
      {"head", R"({"kind": "ctc", "classes": 3, "symbols": ["a", "a"]})",
       "head.symbols: must be the 2 different names of classes 1 to 2, of 1 to 64 bytes each, got "
       "\"[\\\"a\\\",\\\"a\\\"]\""},
  };
  for (const auto& [key, value, error] : cases) {
    Json json = frames_config();
    json.set(key, json_of(value));
    const auto parsed = parse_model_config(json, "config.json");
    ASSERT_FALSE(parsed.ok()) << key << " " << value;
    EXPECT_EQ(parsed.error().to_string(), std::string("config.json: ") + error);
  }
}

TEST(ModelConfig, LayerErrorsNameTheLayer) {
  const std::string mlp = R"("mlp":{"hidden_dim":4,"activation":"relu"})";
  const std::string mixer = R"("mixer":{"name":"linear_attention","num_heads":1,"key_dim":2})";
  const auto layers = [&](const std::string& second) {
    return error_with("layers", "[{" + mixer + "," + mlp + "},{" + second + "}]");
  };
  EXPECT_EQ(layers(mixer + "," + mlp), "");
  EXPECT_EQ(layers(mlp), "config.json: layers[1].mixer: is missing");
  EXPECT_EQ(layers(mixer), "config.json: layers[1].mlp: is missing");
  EXPECT_EQ(layers(mixer + "," + mlp + R"(,"repeat":0)"),
            "config.json: layers[1].repeat: must be an integer from 1 to 1024, got 0");
  EXPECT_EQ(layers(mixer + "," + mlp + R"(,"repeat":1024)"),
            "config.json: layers[1]: there are more than 1024 layers");
  EXPECT_EQ(layers(mixer + "," + mlp + R"(,"dropout":0)"),
            "config.json: layers[1]: unknown key \"dropout\"; known keys: repeat, mixer, mlp");
  EXPECT_EQ(layers(mixer + R"(,"mlp":{"hidden_dim":4,"activation":"tanh"})"),
            "config.json: layers[1].mlp.activation: must be one of relu, gelu, gelu_tanh, silu, "
            "got \"tanh\"");
  EXPECT_EQ(layers(mixer + R"(,"mlp":7)"), "config.json: layers[1].mlp: must be an object, got 7");
  EXPECT_EQ(layers(mixer + R"(,"mlp":null)"), "");
  EXPECT_EQ(layers(R"("mixer":7,)" + mlp),
            "config.json: layers[1].mixer: must be an object with a string \"name\"");
  EXPECT_EQ(layers(R"("mixer":{"name":"nothing"},)" + mlp)
                .rfind("config.json: layers[1].mixer.name: unknown mixer \"nothing\"", 0),
            0u);
  // The mechanism reads the rest; its errors carry the same path.
  EXPECT_EQ(layers(R"("mixer":{"name":"linear_attention","num_heads":-1,"key_dim":2},)" + mlp)
                .rfind("config.json: layers[1].mixer.num_heads: ", 0),
            0u);
  EXPECT_NE(layers(R"("mixer":{"name":"linear_attention","num_heads":1,"key_dim":2,"x":1},)" + mlp)
                .find("unknown key \"x\""),
            std::string::npos);
}

TEST(ModelConfig, WhatALayerReceivesMustHaveBeenHandedOn) {
  const auto layer = [](const char* residual, int64_t key_dim) {
    const Json mixer = Json::Object{{"name", "rwkv7"},         {"num_heads", 2},
                                    {"key_dim", key_dim},      {"decay_rank", 2},
                                    {"learning_rate_rank", 2}, {"value_rank", 2},
                                    {"gate_rank", 2},          {"value_residual", residual}};
    return Json(Json::Object{{"mixer", mixer}, {"mlp", Json()}});
  };
  const Json between = (*small_config().find("layers")->as_array())[0];
  const auto error = [](const Json::Array& layers) {
    return error_with("layers", Json(layers).dump());
  };
  EXPECT_EQ(error({layer("source", 6), between, layer("mixed", 6), layer("mixed", 6)}), "");
  EXPECT_EQ(error({layer("source", 6), layer("source", 3), layer("mixed", 3)}), "");
  const std::string where = "config.json: layers: layer ";
  EXPECT_EQ(error({between, layer("mixed", 6)}),
            where + "2 (rwkv7) receives rows of 12 values, but no earlier layer hands any on");
  EXPECT_EQ(error({layer("mixed", 6), layer("source", 6)}),
            where + "0 (rwkv7) receives rows of 12 values, but no earlier layer hands any on");
  EXPECT_EQ(error({layer("source", 6), layer("source", 3), layer("mixed", 6)}),
            where + "2 (rwkv7) receives rows of 12 values, but the rows handed on to it have 6");
}

TEST(ModelConfig, RefusesAModelThatIsTooLarge) {
  Json json = small_config();
  json.set("model_dim", 65536);
  json.set("layers", json_of(R"([{"repeat": 1024, "mixer": {"name": "linear_attention",
      "num_heads": 1024, "key_dim": 64}, "mlp": {"hidden_dim": 1048576, "activation": "relu"}}])"));
  EXPECT_NE(error_of(json).find("parameters, at most 68719476736 are allowed"), std::string::npos)
      << error_of(json);
}

TEST(ModelConfig, AnImageMustFitTheTokens) {
  Json json = small_config();
  json.set("modality", "image");
  json.set("image", json_of(R"({"width": 41, "height": 1, "channels": 1})"));
  EXPECT_EQ(error_of(json), "config.json: max_tokens: is 40, but an image of 41x1x1 has 41 tokens");
}

TEST(ModelConfig, NoMutationCrashes) {
  const std::string text = small_config().dump();
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char replacement : {'0', '"', '{', '-', '\x80'}) {
      std::string changed = text;
      changed[i] = replacement;
      const Result<Json> json = parse_json(changed, "test");
      if (!json.ok()) continue;
      const Result<ModelConfig> config = parse_model_config(*json, "test");
      EXPECT_EQ(config.ok(), config.ok() && to_json(*config).as_object() != nullptr);
    }
  }
}

}  // namespace
}  // namespace tarn::model
