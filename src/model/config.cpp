#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "model/parameters.h"

namespace tarn::model {
namespace {

const std::vector<std::string> kModalities = {"tokens", "bytes", "image", "frames"};
const std::vector<std::string> kPositions = {"none", "learned", "sinusoidal"};
const std::vector<std::string> kNorms = {"layer_norm", "rms_norm"};
const std::vector<std::string> kPlacements = {"post", "pre"};
const std::vector<std::string> kHeads = {"categorical", "discretised_logistic_mixture", "ctc"};
const std::vector<std::string> kActivations = {"relu", "gelu", "gelu_tanh", "silu"};

/// The double whose shortest decimal form is that of `value`: 1e-05 instead of 9.99999974e-06.
double decimal(float value) {
  char digits[32];
  const char* end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  double result = 0;
  std::from_chars(digits, end, result);
  return result;
}

void read_image(JsonReader& top, ModelConfig& config, Status& status) {
  const Json* json =
      config.modality == Modality::kImage ? top.required("image") : top.optional("image");
  if (json == nullptr) return;
  if (config.modality != Modality::kImage) {
    top.fail("image", "is only for modality image");
    return;
  }
  JsonReader reader(*json, top.path("image"));
  config.image_width = reader.integer("width", 1, kMaxImageSide);
  config.image_height = reader.integer("height", 1, kMaxImageSide);
  config.image_channels = reader.integer("channels", 1, 4, 1);
  status = reader.finish();
}

void read_frames(JsonReader& top, ModelConfig& config, Status& status) {
  const bool over_frames = config.modality == Modality::kFrames;
  const Json* json = over_frames ? top.required("frames") : top.optional("frames");
  if (json == nullptr) return;
  if (!over_frames) {
    top.fail("frames", "is only for modality frames");
    return;
  }
  JsonReader reader(*json, top.path("frames"));
  config.frame_features = reader.integer("features", 1, kMaxFeatures);
  config.frame_stack = reader.integer("stack", 1, kMaxStack, 1);
  status = reader.finish();
}

void read_frontend(JsonReader& top, ModelConfig& config, Status& status) {
  const Json* json = top.optional("frontend");
  if (json == nullptr) return;
  if (config.modality != Modality::kFrames) {
    top.fail("frontend", "is only for modality frames");
    return;
  }
  auto frontend = audio::parse_frontend_config(*json, top.path("frontend"));
  if (frontend.ok())
    config.frontend = *frontend;
  else
    status = frontend.error();
}

/// Input symbols, which models over frames do not have.
void read_symbols(JsonReader& top, ModelConfig& config) {
  if (config.modality != Modality::kFrames) {
    config.vocabulary = top.integer("vocabulary", 1, kMaxVocabulary);
    config.start_token = top.integer("start_token", 0, kMaxVocabulary - 1);
    return;
  }
  for (const char* key : {"vocabulary", "start_token", "embedding_lags"}) {
    if (top.optional(key) != nullptr) top.fail(key, "is not for modality frames");
  }
}

void read_position(JsonReader& top, ModelConfig& config, Status& status) {
  const Json* json = top.required("position");
  if (json == nullptr) return;
  JsonReader reader(*json, top.path("position"));
  config.position = static_cast<PositionKind>(reader.choice("kind", kPositions));
  config.position_period = reader.integer("grid_width", 0, kMaxImageSide, 0);
  if (config.position != PositionKind::kLearned && config.position_period > 0) {
    reader.fail("grid_width", "is only for learned positions");
  }
  status = reader.finish();
}

void read_lags(JsonReader& top, ModelConfig& config) {
  const Json* json = top.optional("embedding_lags");
  if (json == nullptr) return;
  bool valid = json->as_array() != nullptr && !json->as_array()->empty();
  for (const Json& item : valid ? *json->as_array() : Json::Array{}) {
    const int64_t last = config.embedding_lags.empty() ? 0 : config.embedding_lags.back();
    const int64_t* lag = item.as_int();
    valid = valid && lag != nullptr && *lag > last && *lag <= kMaxEmbeddingLag;
    if (valid) config.embedding_lags.push_back(*lag);
  }
  if (valid) return;
  top.fail("embedding_lags", fmt::format("must be a list of increasing whole numbers from 1 to {}, "
                                         "got {}",
                                         kMaxEmbeddingLag, json_quote(json->dump(), 60)));
}

void read_norm(JsonReader& top, ModelConfig& config, Status& status) {
  const Json* json = top.required("norm");
  if (json == nullptr) return;
  JsonReader reader(*json, top.path("norm"));
  config.norm = static_cast<NormKind>(reader.choice("kind", kNorms));
  config.placement = static_cast<NormPlacement>(reader.choice("placement", kPlacements));
  config.norm_eps = static_cast<float>(reader.number("eps", 1e-12, 1.0, 1e-5));
  config.final_norm = reader.boolean("final", true);
  status = reader.finish();
}

void read_symbol_names(JsonReader& reader, HeadConfig& head) {
  const Json* json = reader.optional("symbols");
  if (json == nullptr) return;
  const Json::Array* names = json->as_array();
  bool valid = names != nullptr && static_cast<int64_t>(names->size()) == head.classes - 1;
  for (const Json& item : valid ? *names : Json::Array{}) {
    const std::string* name = item.as_string();
    valid = valid && name != nullptr && !name->empty() &&
            static_cast<int64_t>(name->size()) <= kMaxSymbolBytes &&
            std::find(head.symbols.begin(), head.symbols.end(), *name) == head.symbols.end();
    if (valid) head.symbols.push_back(*name);
  }
  if (valid) return;
  reader.fail("symbols",
              fmt::format("must be the {} different names of classes 1 to {}, of 1 to {} "
                          "bytes each, got {}",
                          head.classes - 1, head.classes - 1, kMaxSymbolBytes,
                          json_quote(json->dump(), 60)));
}

void read_head(JsonReader& top, ModelConfig& config, Status& status) {
  const Json* json = top.required("head");
  if (json == nullptr) return;
  JsonReader reader(*json, top.path("head"));
  config.head.kind = static_cast<HeadKind>(reader.choice("kind", kHeads));
  const char* size_key = "classes";
  if (config.head.kind == HeadKind::kCategorical) {
    config.head.classes = reader.integer("classes", 1, kMaxVocabulary);
  } else if (config.head.kind == HeadKind::kCtc) {
    config.head.classes = reader.integer("classes", 2, kMaxLevels);
    read_symbol_names(reader, config.head);
  } else {
    size_key = "levels";
    config.head.components = reader.integer("components", 1, kMaxComponents, 10);
    config.head.classes = reader.integer("levels", 2, kMaxLevels, 256);
  }
  const bool over_frames = config.modality == Modality::kFrames;
  if ((config.head.kind == HeadKind::kCtc) != over_frames) {
    reader.fail("kind", over_frames ? "must be ctc for modality frames"
                                    : "ctc is only for modality frames");
  }
  if (!over_frames && config.head.classes > config.vocabulary) {
    reader.fail(size_key, fmt::format("is {}, but what the model predicts must be in its "
                                      "vocabulary of {}",
                                      config.head.classes, config.vocabulary));
  }
  status = reader.finish();
}

Result<LayerConfig> read_mixer(const Json& json, int64_t model_dim, const std::string& where) {
  LayerConfig layer;
  layer.mixer_json = json;
  TARN_ASSIGN(mixers::ConfiguredMixer mixer, mixers::parse_mixer(json, model_dim, where));
  layer.mixer = mixer.def;
  layer.mixer_config = std::move(mixer.config);
  layer.rows = mixers::layer_rows(*layer.mixer, *layer.mixer_config);
  return layer;
}

Status read_mlp(const Json& json, const std::string& where, LayerConfig& layer) {
  JsonReader reader(json, where);
  layer.mlp_hidden_dim = reader.integer("hidden_dim", 1, kMaxMlpDim);
  const size_t activation = reader.choice("activation", kActivations);
  TARN_RETURN_IF_ERROR(reader.finish());
  layer.mlp_activation = *kernels::activation_from_name(kActivations[activation]);
  return {};
}

/// Appends the layers of one entry of "layers".
Status read_layer_group(const Json& json, const std::string& where, ModelConfig& config) {
  JsonReader reader(json, where);
  const int64_t repeat = reader.integer("repeat", 1, kMaxLayers, 1);
  const Json* mixer = reader.required("mixer");
  const Json* mlp = reader.required("mlp");
  TARN_RETURN_IF_ERROR(reader.finish());
  if (static_cast<int64_t>(config.layers.size()) + repeat > kMaxLayers) {
    return invalid_argument(fmt::format("there are more than {} layers", kMaxLayers), where);
  }
  TARN_ASSIGN(LayerConfig layer, read_mixer(*mixer, config.model_dim, reader.path("mixer")));
  if (!mlp->is_null()) {
    TARN_RETURN_IF_ERROR(read_mlp(*mlp, reader.path("mlp"), layer));
  }
  config.layers.insert(config.layers.end(), static_cast<size_t>(repeat), layer);
  return {};
}

Status read_layers(const Json& json, const std::string& where, ModelConfig& config) {
  const Json::Array* groups = json.as_array();
  if (groups == nullptr || groups->empty()) {
    return invalid_argument("must be a non-empty array of layers", where);
  }
  for (size_t i = 0; i < groups->size(); ++i) {
    TARN_RETURN_IF_ERROR(read_layer_group((*groups)[i], fmt::format("{}[{}]", where, i), config));
  }
  return {};
}

/// What a layer receives, the latest earlier layer that hands rows on must provide.
Status check_rows(const ModelConfig& config, const std::string& where) {
  int64_t handed_on = 0;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    if (layer.rows.received > 0 && layer.rows.received != handed_on) {
      const std::string found = handed_on == 0
                                    ? "no earlier layer hands any on"
                                    : fmt::format("the rows handed on to it have {}", handed_on);
      return invalid_argument(fmt::format("layer {} ({}) receives rows of {} values, but {}", i,
                                          layer.mixer->name, layer.rows.received, found),
                              where);
    }
    if (layer.rows.handed_on > 0) handed_on = layer.rows.handed_on;
  }
  return {};
}

/// Rules between keys.
void check_together(JsonReader& top, const ModelConfig& config) {
  if (config.modality != Modality::kFrames && config.start_token >= config.vocabulary) {
    top.fail("start_token", fmt::format("is {}, must be below the vocabulary of {}",
                                        config.start_token, config.vocabulary));
  }
  if (config.max_tokens == 0 && config.position == PositionKind::kLearned) {
    top.fail("max_tokens", "must be at least 1 with learned positions, got 0");
  }
  if (config.modality == Modality::kImage && config.max_tokens > 0) {
    const int64_t tokens = config.image_width * config.image_height * config.image_channels;
    if (tokens > config.max_tokens) {
      top.fail("max_tokens",
               fmt::format("is {}, but an image of {}x{}x{} has {} tokens", config.max_tokens,
                           config.image_width, config.image_height, config.image_channels, tokens));
    }
  }
  if (config.frontend && config.frontend->features() != config.frame_features) {
    top.fail("frames", fmt::format("has {} features, but the frontend makes {}",
                                   config.frame_features, config.frontend->features()));
  }
  if (config.modality == Modality::kBytes &&
      (config.head.kind != HeadKind::kCategorical || config.head.classes != 256)) {
    top.fail("head", "must be categorical with 256 classes for modality bytes");
  }
}

/// The total number of parameters, or nothing when it does not fit int64.
std::optional<int64_t> total_parameters(const ModelConfig& config) {
  int64_t total = 0;
  for (const mixers::ParamSpec& spec : parameter_table(config)) {
    const auto size = checked_product<int64_t>(spec.shape);
    const auto sum = size ? checked_add(total, *size) : std::nullopt;
    if (!sum) return std::nullopt;
    total = *sum;
  }
  return total;
}

}  // namespace

int64_t ModelConfig::handed_on_width() const {
  int64_t width = 0;
  for (const LayerConfig& layer : layers) width = std::max(width, layer.rows.handed_on);
  return width;
}

Result<ModelConfig> parse_model_config(const Json& json, const std::string& where) {
  JsonReader reader(json, where);
  ModelConfig config;
  reader.choice("format", {"tarn-model"});
  const Json* version = reader.required("format_version");
  if (version != nullptr && (version->as_int() == nullptr || *version->as_int() != 1)) {
    reader.fail("format_version",
                "is " + json_quote(version->dump(), 20) + ", this build reads version 1");
  }
  Status image, frames, frontend, position, norm, head;
  config.modality = static_cast<Modality>(reader.choice("modality", kModalities));
  read_image(reader, config, image);
  read_frames(reader, config, frames);
  read_frontend(reader, config, frontend);
  read_symbols(reader, config);
  config.model_dim = reader.integer("model_dim", 1, kMaxModelDim);
  config.max_tokens = reader.integer("max_tokens", 0, kMaxTokens);
  read_position(reader, config, position);
  if (config.modality != Modality::kFrames) read_lags(reader, config);
  config.embedding_scale = static_cast<float>(reader.number("embedding_scale", 0.0, 1000.0, 0.02));
  config.embedding_norm = reader.boolean("embedding_norm", false);
  read_norm(reader, config, norm);
  const Json* layers = reader.required("layers");
  read_head(reader, config, head);
  if (image.ok() && frames.ok() && frontend.ok() && position.ok() && norm.ok() && head.ok())
    check_together(reader, config);
  TARN_RETURN_IF_ERROR(reader.finish());
  TARN_RETURN_IF_ERROR(image);
  TARN_RETURN_IF_ERROR(frames);
  TARN_RETURN_IF_ERROR(frontend);
  TARN_RETURN_IF_ERROR(position);
  TARN_RETURN_IF_ERROR(norm);
  TARN_RETURN_IF_ERROR(head);
  TARN_RETURN_IF_ERROR(read_layers(*layers, reader.path("layers"), config));
  TARN_RETURN_IF_ERROR(check_rows(config, reader.path("layers")));
  const std::optional<int64_t> parameters = total_parameters(config);
  if (!parameters || *parameters > kMaxParameters) {
    return invalid_argument(
        fmt::format("the model would have {} parameters, at most {} are allowed",
                    parameters ? std::to_string(*parameters) : "more than 2^63", kMaxParameters),
        where);
  }
  return config;
}

Json to_json(const ModelConfig& config) {
  const auto name = [](const std::vector<std::string>& names, auto value) {
    return Json(names[static_cast<size_t>(value)]);
  };
  Json json;
  json.set("format", "tarn-model");
  json.set("format_version", 1);
  json.set("modality", name(kModalities, config.modality));
  if (config.modality == Modality::kImage) {
    json.set("image", Json::Object{{"width", config.image_width},
                                   {"height", config.image_height},
                                   {"channels", config.image_channels}});
  }
  if (config.modality == Modality::kFrames) {
    json.set("frames",
             Json::Object{{"features", config.frame_features}, {"stack", config.frame_stack}});
    if (config.frontend) json.set("frontend", audio::to_json(*config.frontend));
  } else {
    json.set("vocabulary", config.vocabulary);
    json.set("start_token", config.start_token);
  }
  json.set("model_dim", config.model_dim);
  json.set("max_tokens", config.max_tokens);
  Json position = Json::Object{{"kind", name(kPositions, config.position)}};
  if (config.position == PositionKind::kLearned) {
    position.set("grid_width", config.position_period);
  }
  json.set("position", position);
  if (!config.embedding_lags.empty()) {
    json.set("embedding_lags",
             Json::Array(config.embedding_lags.begin(), config.embedding_lags.end()));
  }
  json.set("embedding_scale", decimal(config.embedding_scale));
  if (config.embedding_norm) json.set("embedding_norm", true);
  json.set("norm", Json::Object{{"kind", name(kNorms, config.norm)},
                                {"placement", name(kPlacements, config.placement)},
                                {"eps", decimal(config.norm_eps)},
                                {"final", config.final_norm}});
  Json::Array layers;
  const LayerConfig* previous = nullptr;
  for (const LayerConfig& layer : config.layers) {
    if (previous != nullptr && layer.mixer_json == previous->mixer_json &&
        layer.mlp_hidden_dim == previous->mlp_hidden_dim &&
        layer.mlp_activation == previous->mlp_activation) {
      Json& group = layers.back();
      group.set("repeat", *group.find("repeat")->as_int() + 1);
    } else {
      Json mlp;
      if (layer.has_mlp()) {
        mlp = Json::Object{{"hidden_dim", layer.mlp_hidden_dim},
                           {"activation", kernels::activation_name(layer.mlp_activation)}};
      }
      layers.push_back(Json::Object{{"repeat", 1}, {"mixer", layer.mixer_json}, {"mlp", mlp}});
    }
    previous = &layer;
  }
  json.set("layers", layers);
  Json head = Json::Object{{"kind", name(kHeads, config.head.kind)}};
  if (config.head.kind != HeadKind::kDiscretisedLogisticMixture) {
    head.set("classes", config.head.classes);
    if (!config.head.symbols.empty()) {
      head.set("symbols", Json::Array(config.head.symbols.begin(), config.head.symbols.end()));
    }
  } else {
    head.set("components", config.head.components);
    head.set("levels", config.head.classes);
  }
  json.set("head", head);
  return json;
}

}  // namespace tarn::model
