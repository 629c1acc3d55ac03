#include "mixers/_template/_template.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::_template {

extern const MixerDef kDef;

namespace {

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = reader.integer("num_heads", 1, 4096);
  config->value_dim = reader.integer("value_dim", 1, 4096);
  // 0.999999 rather than 1: a layer that never writes would only waste its parameters.
  config->decay = static_cast<float>(reader.number("decay", 0.0, 0.999999, 0.9));
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& base) {
  const Config& config = config_of(&base);
  OpShape shape;
  shape.inputs = {{"q", config.num_heads, config.value_dim, OpInput::Range::kNormal},
                  {"v", config.num_heads, config.value_dim, OpInput::Range::kNormal}};
  shape.out_heads = config.num_heads;
  shape.out_dim = config.value_dim;
  return shape;
}

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return {{"s", {config.num_heads, config.value_dim}, 0.0f, false}};
}

/// Per channel: two products and a sum for s, one product for o; backward has both once more.
double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  const double channels =
      static_cast<double>(config.num_heads) * static_cast<double>(config.value_dim);
  if (pass == OpPass::kStep) return 4 * channels;
  return (pass == OpPass::kForward ? 4 : 8) * channels * static_cast<double>(tokens);
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "value_dim": 32})",
          R"({"num_heads": 3, "value_dim": 5, "decay": 0.5})",
          R"({"num_heads": 1, "value_dim": 33, "decay": 0.0})"};
}

}  // namespace

const MixerDef kDef{
    .name = "_template",
    .summary = "exponential moving average of the values, read through a gate",
    .recurrence = "s = a s + (1 - a) v; o = q * s",
    .source = "the smallest example of a mixer",
    .state_formula = "4*H*V",
    .bounded_state = true,
    .read_config = read_config,
    .state_specs = state_specs,
    .op_shape = op_shape,
    .recurrent = recurrent_forward,
    .parallel = parallel_forward,
    .chunk = chunk_forward,
    .step = step,
    .backward = chunk_backward,
    .flops = flops,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::_template
