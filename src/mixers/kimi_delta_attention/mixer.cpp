#include <cmath>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/kimi_delta_attention/kimi_delta_attention.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::kimi_delta_attention {

extern const MixerDef kDef;

namespace {

using kernels::Decay;
using kernels::Erase;

constexpr double kL2Eps = 1e-6;

struct Config final : TransitionConfig {
  int64_t conv_width = 4;
  int64_t decay_rank = 0;
  int64_t gate_rank = 0;
  double decay_lower_bound = 0.0;  ///< < 0: the bounded gate; 0: softplus
  double norm_eps = 1e-5;
};

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  read_heads(reader, *config);
  config->conv_width = reader.integer("conv_width", 1, 64, 4);
  config->decay_rank = reader.integer("decay_rank", 1, 65536, config->value_dim);
  config->gate_rank = reader.integer("gate_rank", 1, 65536, config->value_dim);
  config->decay_lower_bound = reader.number("decay_lower_bound", -1e3, 0.0, 0.0);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-5);
  TARN_RETURN_IF_ERROR(reader.finish());
  config->decay = Decay::kPerChannel;
  config->erase = Erase::kDelta;
  config->has_beta = true;
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

Slice decay_of(LayerBuilder& builder, const Config& config, const Slice& low) {
  const Slice raw =
      builder.linear("decay", low, {config.keys_width()}).part(0, config.num_heads, config.key_dim);
  if (config.decay_lower_bound < 0.0) {
    return bounded_decay(builder, raw, config.decay_lower_bound);
  }
  return log_decay(builder, "a_log", step_size(builder, "dt_bias", raw));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t keys = config.keys_width();
  const int64_t values = config.values_width();
  const int64_t heads = config.num_heads;
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice in = builder.linear("in", builder.x(),
                                  {keys, keys, values, heads, config.decay_rank, config.gate_rank});
  const Slice mixed = short_convolution(builder, "conv", in.part(0, 1, 2 * keys + values),
                                        config.conv_width, false);
  const Slice q = l2_norm(builder, mixed.part(0, heads, config.key_dim), kL2Eps);
  const Slice k = l2_norm(builder, mixed.part(keys, heads, config.key_dim), kL2Eps);
  const Slice v = mixed.part(2 * keys, heads, config.value_dim);
  int64_t column = 2 * keys + values;
  const Slice beta = apply_function(builder, GateFunction::kSigmoid, in.part(column, heads, 1));
  column += heads;
  const Slice g = decay_of(builder, config, in.part(column, 1, config.decay_rank));
  column += config.decay_rank;
  const Slice gate =
      builder.linear("gate", in.part(column, 1, config.gate_rank), {values}, {.bias = true});
  const Slice normed = rms_norm(builder, "norm", builder.op({q, k, v, g, beta}), config.norm_eps);
  return builder.finish("out", apply_gate(builder, GateFunction::kSigmoid, normed, gate));
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "decay_rank": 4, "gate_rank": 2})",
          R"({"num_heads": 1, "key_dim": 33, "value_dim": 20, "decay_lower_bound": -5})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "kimi_delta_attention",
    .summary = "the delta rule with a decay per key channel and token",
    .recurrence = "S' = diag(alpha) S; S = S' + beta k (x) (v - S'^T k); o = K^-1/2 S^T q",
    .source = "Kimi Team 2025, arXiv 2510.26692, eq. 1; constants as in flash-linear-attention",
    .state_formula = "4*(H*K*V + (W - 1)*H*(2*K + V))",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::kimi_delta_attention
