#include "train/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace tarn::train {
namespace {

constexpr int64_t kMaxUpdates = int64_t{1} << 40;
const std::vector<std::string> kOptimiserNames{"adamw", "radam", "muon"};
const std::vector<std::string> kScheduleNames{"constant", "step", "cosine"};
const std::vector<std::string> kFloatNames{"f32", "bf16"};
constexpr DType kFloats[] = {DType::kF32, DType::kBF16};

Result<OptimiserConfig> read_optimiser(JsonReader& reader) {
  OptimiserConfig config;
  config.kind = static_cast<OptimiserKind>(reader.choice("kind", kOptimiserNames));
  config.learning_rate = reader.number("learning_rate", 0.0, 10.0);
  if (const Json* betas = reader.optional("betas")) {
    const Json::Array* array = betas->as_array();
    std::vector<double> values;
    for (const Json& item : array == nullptr ? Json::Array{} : *array) {
      if (const double* number = item.as_double()) values.push_back(*number);
      if (const int64_t* number = item.as_int()) values.push_back(static_cast<double>(*number));
    }
    const auto is_beta = [](double beta) { return beta >= 0.0 && beta < 1.0; };
    if (values.size() != 2 || array->size() != 2 || !is_beta(values[0]) || !is_beta(values[1])) {
      reader.fail("betas", "wanted two numbers from 0 to below 1, got " + betas->dump());
    } else {
      config.beta1 = values[0];
      config.beta2 = values[1];
    }
  }
  config.eps = reader.number("eps", 1e-30, 1.0, config.eps);
  config.weight_decay = reader.number("weight_decay", 0.0, 10.0, config.weight_decay);
  if (config.kind == OptimiserKind::kMuon) {
    config.matrix_learning_rate =
        reader.number("matrix_learning_rate", 0.0, 10.0, config.matrix_learning_rate);
    config.momentum = reader.number("momentum", 0.0, 0.9999, config.momentum);
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  return config;
}

Result<ScheduleConfig> read_schedule(JsonReader& reader) {
  ScheduleConfig config;
  config.kind = static_cast<ScheduleKind>(reader.choice("kind", kScheduleNames));
  config.warm_up = reader.integer("warm_up", 0, kMaxUpdates, 0);
  if (config.kind != ScheduleKind::kCosine) {
    config.cool_down = reader.integer("cool_down", 0, kMaxUpdates, 0);
  }
  if (config.kind == ScheduleKind::kStep) {
    config.step_updates = reader.integer("step_updates", 1, kMaxUpdates);
    config.step_factor = reader.number("step_factor", 0.0, 1.0, config.step_factor);
  }
  if (config.kind == ScheduleKind::kCosine) {
    config.final_factor = reader.number("final_factor", 0.0, 1.0, config.final_factor);
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  return config;
}

Result<AugmentConfig> read_augment(JsonReader& reader) {
  constexpr int64_t kMost = 1000;
  AugmentConfig config;
  config.time_masks = reader.integer("time_masks", 0, kMost, 0);
  config.time_share = reader.number("time_share", 0.0, 1.0, 0.0);
  config.feature_masks = reader.integer("feature_masks", 0, kMost, 0);
  config.feature_width = reader.integer("feature_width", 0, model::kMaxFeatures, 0);
  TARN_RETURN_IF_ERROR(reader.finish());
  return config;
}

Result<TrainingConfig> read_training(JsonReader& reader) {
  TrainingConfig config;
  config.seed =
      static_cast<uint64_t>(reader.integer("seed", 0, std::numeric_limits<int64_t>::max(), 1));
  config.batch_size = reader.integer("batch_size", 1, 1 << 20);
  config.updates = reader.integer("updates", 1, kMaxUpdates);
  config.precision = kFloats[reader.choice("precision", kFloatNames, 0)];
  const Json* optimiser = reader.required("optimiser");
  const Json* schedule = reader.optional("schedule");
  const Json* augment = reader.optional("augment");
  config.gradient_clip = reader.number("gradient_clip", 0.0, 1e9, config.gradient_clip);
  config.output_gradient_limit =
      reader.number("output_gradient_limit", 0.0, 1e9, config.output_gradient_limit);
  config.average_decay = reader.number("average_decay", 0.0, 0.999999, config.average_decay);
  config.evaluate_every = reader.integer("evaluate_every", 0, kMaxUpdates, 0);
  config.evaluate_limit = reader.integer("evaluate_limit", 0, kMaxUpdates, 0);
  config.checkpoint_every_seconds =
      reader.number("checkpoint_every_seconds", 0.0, 1e9, config.checkpoint_every_seconds);
  config.log_every = reader.integer("log_every", 1, kMaxUpdates, config.log_every);
  config.export_dtype = kFloats[reader.choice("export_dtype", kFloatNames, 0)];
  TARN_RETURN_IF_ERROR(reader.finish());
  JsonReader optimiser_reader(*optimiser, reader.path("optimiser"));
  TARN_ASSIGN(config.optimiser, read_optimiser(optimiser_reader));
  if (schedule != nullptr) {
    JsonReader schedule_reader(*schedule, reader.path("schedule"));
    TARN_ASSIGN(config.schedule, read_schedule(schedule_reader));
  }
  if (augment != nullptr) {
    JsonReader augment_reader(*augment, reader.path("augment"));
    TARN_ASSIGN(config.augment, read_augment(augment_reader));
  }
  return config;
}

/// What symbols are, and what is learnt from them, must be the same for model and data.
Status check_modality(const TrainConfig& config, const std::string& where) {
  const bool over_frames = config.model.modality == model::Modality::kFrames;
  if (over_frames != data::is_frames(config.data.kind)) {
    return invalid_argument(over_frames ? "the model is over frames, but the data has symbols"
                                        : "the data is frames, but the model is over symbols",
                            where);
  }
  const bool is_sound = config.data.kind == data::DataKind::kAudio;
  if (is_sound != config.model.frontend.has_value()) {
    return invalid_argument(is_sound ? "the data is sound, but the model has no frontend"
                                     : "the model has a frontend, but the data is no sound",
                            where);
  }
  if (!over_frames && config.training.augment != AugmentConfig()) {
    return invalid_argument("training.augment is for data that is frames", where);
  }
  return {};
}

/// For models over symbols, which predict the next one.
Status check_fit(const model::ModelConfig& model, const data::DataSpec& data,
                 const std::string& where) {
  const auto [length, vocabulary] = data::sequence_shape(data);
  if (model.max_tokens > 0 && length > model.max_tokens) {
    return invalid_argument("the data has sequences of " + std::to_string(length) +
                                " tokens, but model.max_tokens is " +
                                std::to_string(model.max_tokens),
                            where);
  }
  if (vocabulary > model.vocabulary) {
    return invalid_argument("the data has " + std::to_string(vocabulary) +
                                " symbols, but model.vocabulary is " +
                                std::to_string(model.vocabulary),
                            where);
  }
  if (vocabulary > model.head.classes) {
    return invalid_argument("the data has " + std::to_string(vocabulary) +
                                " symbols, but the head predicts " +
                                std::to_string(model.head.classes),
                            where);
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const model::LayerConfig& layer = model.layers[i];
    if (mixers::layer_states(*layer.mixer, *layer.mixer_config).empty()) {
      return invalid_argument("layer " + std::to_string(i) + " (" + layer.mixer->name +
                                  ") is not causal: it would see the tokens it must predict",
                              where);
    }
  }
  return {};
}

Json optimiser_json(const OptimiserConfig& config) {
  Json json;
  json.set("kind", kOptimiserNames[static_cast<size_t>(config.kind)]);
  json.set("learning_rate", config.learning_rate);
  json.set("betas", Json::Array{config.beta1, config.beta2});
  json.set("eps", config.eps);
  json.set("weight_decay", config.weight_decay);
  if (config.kind == OptimiserKind::kMuon) {
    json.set("matrix_learning_rate", config.matrix_learning_rate);
    json.set("momentum", config.momentum);
  }
  return json;
}

Json schedule_json(const ScheduleConfig& config) {
  Json json;
  json.set("kind", kScheduleNames[static_cast<size_t>(config.kind)]);
  json.set("warm_up", config.warm_up);
  if (config.kind != ScheduleKind::kCosine) json.set("cool_down", config.cool_down);
  if (config.kind == ScheduleKind::kStep) {
    json.set("step_updates", config.step_updates);
    json.set("step_factor", config.step_factor);
  }
  if (config.kind == ScheduleKind::kCosine) json.set("final_factor", config.final_factor);
  return json;
}

}  // namespace

Result<TrainConfig> parse_train_config(const Json& json, const std::string& where) {
  JsonReader reader(json, where);
  const Json* model = reader.required("model");
  const Json* data = reader.required("data");
  const Json* training = reader.required("training");
  TARN_RETURN_IF_ERROR(reader.finish());
  TrainConfig config;
  TARN_ASSIGN(config.model, model::parse_model_config(*model, reader.path("model")));
  TARN_ASSIGN(config.data, data::parse_data_spec(*data, reader.path("data")));
  JsonReader training_reader(*training, reader.path("training"));
  TARN_ASSIGN(config.training, read_training(training_reader));
  TARN_RETURN_IF_ERROR(check_modality(config, where));
  if (data::is_frames(config.data.kind)) return config;
  TARN_RETURN_IF_ERROR(check_fit(config.model, config.data, where));
  return config;
}

std::vector<JsonKey> training_keys() {
  std::vector<JsonKey> keys;
  const auto add = [&keys](const JsonReader& reader, const std::string& prefix) {
    for (JsonKey key : reader.keys()) {
      key.name = prefix + key.name;
      const auto is_it = [&key](const JsonKey& known) { return known.name == key.name; };
      if (std::none_of(keys.begin(), keys.end(), is_it)) keys.push_back(std::move(key));
    }
  };
  // What is missing from these objects does not matter: the readers ask for it all the same.
  const Json nothing = Json::Object{};
  JsonReader training(nothing, "");
  static_cast<void>(read_training(training));
  add(training, "");
  for (const std::string& kind : kOptimiserNames) {
    const Json json = Json::Object{{"kind", kind}};
    JsonReader reader(json, "");
    static_cast<void>(read_optimiser(reader));
    add(reader, "optimiser.");
  }
  for (const std::string& kind : kScheduleNames) {
    const Json json = Json::Object{{"kind", kind}};
    JsonReader reader(json, "");
    static_cast<void>(read_schedule(reader));
    add(reader, "schedule.");
  }
  JsonReader augment(nothing, "");
  static_cast<void>(read_augment(augment));
  add(augment, "augment.");
  return keys;
}

Json to_json(const TrainConfig& config) {
  const TrainingConfig& training = config.training;
  Json json;
  json.set("seed", static_cast<int64_t>(training.seed));
  json.set("batch_size", training.batch_size);
  json.set("updates", training.updates);
  json.set("precision", dtype_name(training.precision));
  json.set("optimiser", optimiser_json(training.optimiser));
  json.set("schedule", schedule_json(training.schedule));
  if (training.augment != AugmentConfig()) {
    json.set("augment", Json::Object{{"time_masks", training.augment.time_masks},
                                     {"time_share", training.augment.time_share},
                                     {"feature_masks", training.augment.feature_masks},
                                     {"feature_width", training.augment.feature_width}});
  }
  json.set("gradient_clip", training.gradient_clip);
  json.set("output_gradient_limit", training.output_gradient_limit);
  json.set("average_decay", training.average_decay);
  json.set("evaluate_every", training.evaluate_every);
  json.set("evaluate_limit", training.evaluate_limit);
  json.set("checkpoint_every_seconds", training.checkpoint_every_seconds);
  json.set("log_every", training.log_every);
  json.set("export_dtype", dtype_name(training.export_dtype));
  Json document;
  document.set("model", model::to_json(config.model));
  document.set("data", data::to_json(config.data));
  document.set("training", std::move(json));
  return document;
}

double schedule_factor(const ScheduleConfig& config, int64_t update, int64_t updates) {
  if (update < config.warm_up) {
    return static_cast<double>(update + 1) / static_cast<double>(config.warm_up);
  }
  if (config.kind != ScheduleKind::kCosine) {
    const int64_t left = updates - update;
    const double cooling = left < config.cool_down
                               ? static_cast<double>(left) / static_cast<double>(config.cool_down)
                               : 1.0;
    if (config.kind == ScheduleKind::kConstant) return cooling;
    return cooling *
           std::pow(config.step_factor, static_cast<double>(update / config.step_updates));
  }
  const auto length = static_cast<double>(std::max<int64_t>(1, updates - config.warm_up));
  const double progress = std::min(1.0, static_cast<double>(update - config.warm_up) / length);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return config.final_factor + (1.0 - config.final_factor) * cosine;
}

}  // namespace tarn::train
