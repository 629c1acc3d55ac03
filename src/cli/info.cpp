#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/model_options.h"
#include "runtime/state.h"

namespace tarn::cli {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Json states_json(const std::vector<mixers::StateSpec>& specs) {
  Json::Array states;
  for (const mixers::StateSpec& spec : specs) {
    Json state;
    state.set("name", spec.name);
    state.set("shape", Json::Array(spec.shape.begin(), spec.shape.end()));
    state.set("per_token", spec.per_token);
    states.push_back(std::move(state));
  }
  return states;
}

std::string states_text(const std::vector<mixers::StateSpec>& specs) {
  std::string text;
  for (const mixers::StateSpec& spec : specs) {
    text += (text.empty() ? "" : ", ") + spec.name + shape_text(spec.shape) +
            (spec.per_token ? " per token" : "");
  }
  return text;
}

void print(const model::Model& model, const ModelOptions& options, int64_t at, Console& console) {
  const model::ModelConfig& config = model.config();
  const std::string length = config.max_tokens > 0 ? std::to_string(config.max_tokens) : "any";
  std::vector<std::vector<std::string>> rows = {
      {"model", options.folder},
      {"over", modality_name(config.modality)},
      {"parameters", std::to_string(model.parameter_count())},
      {"weights in memory", bytes_text(model.weight_bytes())},
      {"width", std::to_string(config.model_dim)},
      {"layers", std::to_string(config.layers.size())},
      {"longest sequence", length},
      {"fingerprint", fmt::format("{:016x}", model.fingerprint())},
      {"state at 1 token", bytes_text(runtime::SequenceState::used_bytes_at(model, 1))},
      {fmt::format("state at {} tokens", at),
       bytes_text(runtime::SequenceState::used_bytes_at(model, at))}};
  console.table(rows);
  console.text("");
  std::vector<std::vector<std::string>> layers = {{"layer", "mixer", "state"}};
  for (size_t i = 0; i < config.layers.size(); ++i) {
    layers.push_back(
        {std::to_string(i), config.layers[i].mixer->name, states_text(model.state_specs()[i])});
  }
  if (!config.embedding_lags.empty()) {
    layers.push_back({"embedding", "", states_text(model.state_specs().back())});
  }
  console.table(layers);
}

Status run(const ModelOptions& options, Context& context) {
  TARN_ASSIGN(const auto model, options.load());
  const model::ModelConfig& config = model->config();
  const int64_t at = config.max_tokens > 0 ? config.max_tokens : 1024;
  Json::Array layers;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    layers.push_back(Json::Object{{"mixer", config.layers[i].mixer->name},
                                  {"state", states_json(model->state_specs()[i])}});
  }
  Json json;
  json.set("model", options.folder);
  json.set("modality", modality_name(config.modality));
  json.set("parameters", model->parameter_count());
  json.set("weight_bytes", model->weight_bytes());
  json.set("model_dim", config.model_dim);
  json.set("max_tokens", config.max_tokens);
  json.set("fingerprint", fmt::format("{:016x}", model->fingerprint()));
  json.set("state_bytes_at_1", runtime::SequenceState::used_bytes_at(*model, 1));
  json.set("state_bytes_at_max", runtime::SequenceState::used_bytes_at(*model, at));
  json.set("layers", std::move(layers));
  if (!config.embedding_lags.empty()) {
    json.set("embedding_state", states_json(model->state_specs().back()));
  }
  json.set("config", model::to_json(config));
  context.console.document(json);
  print(*model, options, at, context.console);
  return {};
}

}  // namespace

void add_info(Command& program, Selection& selection) {
  auto options = std::make_shared<ModelOptions>();
  Command command = program.add(selection, "info", "Sizes, layers and state of a model",
                                [options](Context& context) { return run(*options, context); });
  options->add_to(command);
}

}  // namespace tarn::cli
