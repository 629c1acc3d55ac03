#include <array>
#include <cmath>

#include "mixers/common/stages.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::channel_mix {

extern const MixerDef kDef;

namespace {

struct Config final : MixerConfig {
  int64_t model_dim = 0;
  int64_t hidden_dim = 0;
  double passed = 0.0;  ///< layers before this one, of all; of the starts alone
};

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->hidden_dim = reader.integer("hidden_dim", 1, int64_t{1} << 20);
  const int64_t layers = reader.integer("num_layers", 1, 4096, 1);
  const int64_t index = reader.integer("layer_index", 0, layers - 1, 0);
  TARN_RETURN_IF_ERROR(reader.finish());
  config->passed = static_cast<double>(index) / static_cast<double>(layers);
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

/// 1 − (c / D)^((1 − passed)⁴).
Init mix_start(const Config& config) {
  Init init{Init::Kind::kFormula};
  init.arguments = {static_cast<double>(config.model_dim), std::pow(1.0 - config.passed, 4.0)};
  init.formula = [](int64_t c, const std::array<double, 3>& arguments) {
    return 1.0 - std::pow(static_cast<double>(c) / arguments[0], arguments[1]);
  };
  return init;
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  LayerBuilder builder(config.model_dim);
  const Slice blend = token_shift(builder, builder.x(), 1, mix_start(config));
  const float bound = 0.5f / std::sqrt(static_cast<float>(config.model_dim));
  const Slice key = builder.linear("key", blend, {config.hidden_dim},
                                   {.start = Init{Init::Kind::kUniform, bound}});
  const Slice hidden = apply_function(builder, GateFunction::kSquaredRelu, key);
  return builder.finish("value", hidden, {.start = Init{Init::Kind::kConstant, 0.0f}});
}

std::vector<StateSpec> no_operator_states(const MixerConfig&) { return {}; }
OpShape no_operator(const MixerConfig&) { return {}; }
double no_flops(const MixerConfig&, OpPass, int64_t) { return 0.0; }

std::vector<std::string> example_configs() {
  return {R"({"hidden_dim": 64})", R"({"hidden_dim": 7, "layer_index": 2, "num_layers": 3})"};
}

}  // namespace

const MixerDef kDef{
    .name = "channel_mix",
    .summary = "RWKV-7's channel mixing: a token shift and an MLP with a squared ReLU",
    .recurrence = "y_t = V relu(K (x_t + m (x_{t-1} - x_t)))^2",
    .source = "Peng 2025, arXiv 2503.14456, channel mixing",
    .state_formula = "4*D",
    .bounded_state = true,
    .read_config = read_config,
    .state_specs = no_operator_states,
    .op_shape = no_operator,
    .recurrent = nullptr,
    .parallel = nullptr,
    .chunk = nullptr,
    .step = nullptr,
    .backward = nullptr,
    .flops = no_flops,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::channel_mix
