#include "mixers/common/attention_call.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::softmax_attention {

extern const MixerDef kDef;

namespace {

/// The config object of a layer (keys as in README.md), checked.
struct Config final : AttentionConfig {
  bool causal = true;
};

const Config& config_of(const MixerConfig* config) { return static_cast<const Config&>(*config); }

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  read_attention_config(reader, model_dim, *config);
  config->causal = reader.boolean("causal", true);
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& config) { return attention_shape(config_of(&config)); }

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  return config.causal ? attention_cache(config) : std::vector<StateSpec>();
}

void recurrent(const OpArgs<double>& args) {
  const bool causal = config_of(args.config).causal;
  cached_attention_reference(
      config_of(args.config),
      [causal](int64_t, int64_t query, int64_t key, int64_t) { return !causal || key <= query; },
      args);
}

void attend(const OpArgs<float>& args) noexcept {
  const Config& config = config_of(args.config);
  cached_attention(config, {config.causal}, args);
}

void backward(const OpBackwardArgs& args) noexcept {
  const Config& config = config_of(args.forward.config);
  cached_attention_backward(config, {config.causal}, args);
}

/// T·(T + 1)/2 pairs of query and key when causal, T² when not; a step has one query and T + 1 keys.
double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  const auto count = static_cast<double>(tokens);
  const double pairs = pass == OpPass::kStep ? count + 1
                       : config.causal       ? count * (count + 1) / 2
                                             : count * count;
  return attention_flops(config, pass, pairs);
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32})", R"({"num_heads": 2, "key_dim": 5, "value_dim": 3})",
          R"({"num_heads": 6, "num_kv_heads": 2, "key_dim": 33, "value_dim": 8})",
          R"({"num_heads": 4, "num_kv_heads": 1, "key_dim": 8, "rotary_dim": 6})",
          R"({"num_heads": 2, "key_dim": 7, "scale": 1.0, "causal": false})"};
}

}  // namespace

const MixerDef kDef{
    .name = "softmax_attention",
    .summary = "scaled dot-product attention; a KV cache that grows with the sequence",
    .recurrence = "cache += (k, v); o = softmax(scale q.K) V",
    .source =
        "Vaswani 2017, arXiv 1706.03762, eq. 1; online softmax: Milakov 2018, arXiv 1805.02867",
    .state_formula = "4*T*Hkv*(K + V)",
    .bounded_state = false,
    .read_config = read_config,
    .state_specs = state_specs,
    .op_shape = op_shape,
    .recurrent = recurrent,
    .parallel = attend,
    .chunk = attend,
    .step = attend,
    .backward = backward,
    .flops = flops,
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::softmax_attention
