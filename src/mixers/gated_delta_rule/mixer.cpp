#include <algorithm>
#include <cmath>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::gated_delta_rule {

extern const MixerDef kDef;

namespace {

using kernels::Decay;
using kernels::Erase;

struct Config final : TransitionConfig {
  int64_t conv_width = 4;
  bool negative_eigenvalues = false;  ///< beta in (0, 2) instead of (0, 1)
  double norm_eps = 1e-6;
};

constexpr double kL2Eps = 1e-6;

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = reader.integer("num_heads", 1, 4096);
  config->num_key_heads = reader.integer("num_key_heads", 1, 4096, config->num_heads);
  config->key_dim = reader.integer("key_dim", 1, 4096);
  config->value_dim = reader.integer("value_dim", 1, 4096, config->key_dim);
  config->conv_width = reader.integer("conv_width", 1, 64, 4);
  config->negative_eigenvalues = reader.boolean("negative_eigenvalues", false);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-6);
  if (config->num_heads % std::max<int64_t>(config->num_key_heads, 1) != 0) {
    reader.fail("num_key_heads",
                "got " + std::to_string(config->num_key_heads) +
                    ", wanted a divisor of num_heads = " + std::to_string(config->num_heads));
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  config->decay = Decay::kPerToken;
  config->erase = Erase::kDelta;
  config->has_beta = true;
  config->scale = 1.0 / std::sqrt(static_cast<double>(config->key_dim));
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t keys = config.keys_width();
  const int64_t values = config.values_width();
  const int64_t heads = config.num_heads;
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice in = builder.linear("in", builder.x(), {keys, keys, values, values, heads, heads});
  const Slice mixed = short_convolution(builder, "conv", in.part(0, 1, 2 * keys + values),
                                        config.conv_width, false);
  const Slice q = l2_norm(builder, mixed.part(0, config.num_key_heads, config.key_dim), kL2Eps);
  const Slice k = l2_norm(builder, mixed.part(keys, config.num_key_heads, config.key_dim), kL2Eps);
  const Slice v = mixed.part(2 * keys, heads, config.value_dim);
  const Slice gate = in.part(2 * keys + values, heads, config.value_dim);
  const Slice beta =
      apply_function(builder, GateFunction::kSigmoid, in.part(2 * (keys + values), heads, 1),
                     config.negative_eigenvalues ? 2.0 : 1.0);
  const Slice step = step_size(builder, "dt_bias", in.part(2 * (keys + values) + heads, heads, 1));
  const Slice g = log_decay(builder, "a_log", step);
  const Slice normed = rms_norm(builder, "norm", builder.op({q, k, v, g, beta}), config.norm_eps);
  return builder.finish("out", apply_gate(builder, GateFunction::kSilu, normed, gate));
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32})",
          R"({"num_heads": 4, "num_key_heads": 2, "key_dim": 5, "value_dim": 3})",
          R"({"num_heads": 1, "key_dim": 33, "value_dim": 20, "negative_eigenvalues": true})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "gated_delta_rule",
    .summary = "the delta rule with a decay per head and token",
    .recurrence = "S' = alpha S; S = S' + beta k (x) (v - S'^T k); o = K^-1/2 S^T q",
    .source = "Yang 2024, arXiv 2412.06464, eq. 10; constants as in flash-linear-attention and "
              "transformers (Qwen3-Next)",
    .state_formula = "4*(H*K*V + (W - 1)*(2*Hk*K + H*V))",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::gated_delta_rule
