#include <cmath>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::gated_linear_attention {

extern const MixerDef kDef;

namespace {

using kernels::Decay;

struct Config final : TransitionConfig {
  int64_t decay_rank = 16;
  double decay_divisor = 16.0;
  double norm_eps = 1e-5;
};

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  read_heads(reader, *config);
  config->decay_rank = reader.integer("decay_rank", 1, 65536, 16);
  config->decay_divisor = reader.number("decay_divisor", 1.0, 1e6, 16.0);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-5);
  TARN_RETURN_IF_ERROR(reader.finish());
  config->decay = Decay::kPerChannel;
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t keys = config.keys_width();
  const int64_t values = config.values_width();
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice in =
      builder.linear("in", builder.x(), {keys, keys, values, values, config.decay_rank});
  const Slice q = in.part(0, config.num_heads, config.key_dim);
  const Slice k = in.part(keys, config.num_heads, config.key_dim);
  const Slice v = in.part(2 * keys, config.num_heads, config.value_dim);
  const Slice gate = in.part(2 * keys + values, config.num_heads, config.value_dim);
  const Slice low = in.part(2 * (keys + values), 1, config.decay_rank);
  const Slice decay = builder.linear("decay", low, {keys}, {.bias = true});
  const Slice g =
      apply_function(builder, GateFunction::kLogSigmoid, decay, 1.0 / config.decay_divisor);
  const Slice normed = rms_norm(builder, "norm", builder.op({q, k, v, g}), config.norm_eps);
  return builder.finish("out", apply_gate(builder, GateFunction::kSilu, normed, gate));
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32, "value_dim": 64})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "decay_rank": 4})",
          R"({"num_heads": 1, "key_dim": 33, "value_dim": 20, "decay_divisor": 1})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "gated_linear_attention",
    .summary = "linear attention whose decay depends on token and key channel",
    .recurrence = "S = diag(alpha_t) S + k (x) v; o = K^-1/2 S^T q",
    .source = "Yang 2024, arXiv 2312.06635, eqs. 3-8; constants as in flash-linear-attention",
    .state_formula = "4*H*K*V",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::gated_linear_attention
