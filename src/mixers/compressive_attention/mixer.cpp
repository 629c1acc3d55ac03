#include <algorithm>

#include "mixers/compressive_attention/compressive_attention.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::compressive_attention {

extern const MixerDef kDef;

namespace {

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  read_attention_config(reader, model_dim, *config, false);
  config->window = reader.integer("window", 1, 1 << 20);
  config->compression = reader.integer("compression", 1, 4096);
  config->memory = reader.integer("memory", 1, 1 << 20);
  config->pooling =
      static_cast<Pooling>(reader.choice("pooling", {"mean", "max", "convolution"}, 0));
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& base) {
  const Config& config = config_of(&base);
  OpShape shape = attention_shape(config);
  if (config.pooling == Pooling::kConvolution) {
    // Starts as the mean.
    const Init init{Init::Kind::kConstant, 1.0f / static_cast<float>(config.compression)};
    const int64_t heads = config.num_kv_heads;
    shape.params = {{"compress_k.weight", {heads, config.compression, config.key_dim}, init},
                    {"compress_v.weight", {heads, config.compression, config.value_dim}, init}};
  }
  return shape;
}

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return slot_specs(config, Layout(config).num_slots());
}

void attend(const OpArgs<float>& args) noexcept {
  const Config& config = config_of(args.config);
  slot_attention(config, Layout(config), args);
}

void backward(const OpBackwardArgs& args) noexcept {
  const Config& config = config_of(args.forward.config);
  slot_attention_backward(config, Layout(config), args);
}

double visible_keys(const Config& config, int64_t position) {
  const int64_t blocks = config.blocks_after(position + 1);
  return static_cast<double>(std::min(blocks, config.memory) + position + 1 -
                             blocks * config.compression);
}

double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  double pairs = 0;
  if (pass == OpPass::kStep) {
    pairs = visible_keys(config, tokens);
  } else {
    for (int64_t t = 0; t < tokens; ++t) pairs += visible_keys(config, t);
  }
  return attention_flops(config, pass, pairs);
}

/// A step that completes a block also reads the block's tokens and writes an entry of the memory.
StateTraffic step_traffic(const MixerConfig& base, int64_t tokens) {
  const Config& config = config_of(&base);
  StateTraffic traffic = attention_traffic(config, visible_keys(config, tokens));
  if (config.blocks_after(tokens + 1) > config.blocks_after(tokens)) {
    traffic.read += static_cast<double>(config.compression) * traffic.written;
    traffic.written *= 2;
  }
  return traffic;
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32, "window": 12, "compression": 3, "memory": 8,
              "pooling": "convolution"})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "window": 1, "compression": 1,
              "memory": 1})",
          R"({"num_heads": 6, "num_kv_heads": 2, "key_dim": 17, "value_dim": 8, "window": 9,
              "compression": 4, "memory": 70})",
          R"({"num_heads": 2, "num_kv_heads": 1, "key_dim": 6, "value_dim": 4, "window": 2,
              "compression": 2, "memory": 3, "pooling": "max", "scale": 0.7})",
          R"({"num_heads": 1, "key_dim": 3, "window": 2, "compression": 2, "memory": 2,
              "pooling": "convolution"})"};
}

}  // namespace

const MixerDef kDef{
    .name = "compressive_attention",
    .summary = "softmax attention over the last tokens and a fixed memory of pooled older ones",
    .recurrence =
        "memory += pool(block of tokens that left the window); "
        "o_t = softmax over memory and window of (scale q_t.k_j) v_j",
    .source = "Rae 2019, arXiv 1911.05507, section 3",
    .state_formula = "4*(memory + window + compression)*Hkv*(K + V)",
    .bounded_state = true,
    .read_config = read_config,
    .state_specs = state_specs,
    .op_shape = op_shape,
    .recurrent = recurrent_forward,
    .parallel = attend,
    .chunk = attend,
    .step = attend,
    .backward = backward,
    .flops = flops,
    .step_traffic = step_traffic,
    .cut_quantum = kernels::kMaxQueryBlock,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::compressive_attention
