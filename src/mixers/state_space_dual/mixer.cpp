#include <algorithm>
#include <cmath>
#include <limits>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::state_space_dual {

extern const MixerDef kDef;

namespace {

using kernels::Decay;

struct Config final : TransitionConfig {
  int64_t conv_width = 4;
  int64_t norm_groups = 1;
  double step_min = 0.0;
  double step_max = std::numeric_limits<float>::max();
  double norm_eps = 1e-5;
};

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = reader.integer("num_heads", 1, 4096);
  config->num_key_heads = reader.integer("num_groups", 1, 4096, 1);
  config->key_dim = reader.integer("key_dim", 1, 4096);
  config->value_dim = reader.integer("value_dim", 1, 4096, config->key_dim);
  config->conv_width = reader.integer("conv_width", 1, 64, 4);
  config->step_min = reader.number("dt_min", 0.0, 1e6, 0.0);
  // Float's largest number stands for none: softplus never reaches it.
  config->step_max = reader.number("dt_max", 0.0, 1e6, config->step_max);
  config->norm_groups = reader.integer("norm_groups", 1, 4096, 1);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-5);
  if (config->num_heads % std::max<int64_t>(config->num_key_heads, 1) != 0) {
    reader.fail("num_groups",
                "got " + std::to_string(config->num_key_heads) +
                    ", wanted a divisor of num_heads = " + std::to_string(config->num_heads));
  }
  if (config->values_width() % std::max<int64_t>(config->norm_groups, 1) != 0) {
    reader.fail("norm_groups", "got " + std::to_string(config->norm_groups) +
                                   ", wanted a divisor of num_heads * value_dim = " +
                                   std::to_string(config->values_width()));
  }
  if (config->step_min > config->step_max) {
    reader.fail("dt_min", "is above dt_max");
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  config->decay = Decay::kPerToken;
  config->has_beta = true;
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t keys = config.keys_width();
  const int64_t values = config.values_width();
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice in =
      builder.linear("in", builder.x(), {values, values, keys, keys, config.num_heads});
  const Slice z = in.part(0, 1, values);
  const Slice mixed = short_convolution(builder, "conv", in.part(values, 1, values + 2 * keys),
                                        config.conv_width, true);
  const Slice x = mixed.part(0, config.num_heads, config.value_dim);
  const Slice b = mixed.part(values, config.num_key_heads, config.key_dim);
  const Slice c = mixed.part(values + keys, config.num_key_heads, config.key_dim);
  const Slice raw = in.part(2 * (values + keys), config.num_heads, 1);
  const Slice step = step_size(builder, "dt_bias", raw, config.step_min, config.step_max);
  const Slice g = log_decay(builder, "a_log", step);
  const Slice y = add_skip(builder, "d", builder.op({c, b, x, g, step}), x);
  const Slice gated = apply_gate(builder, GateFunction::kSilu, y, z);
  const Slice groups = gated.part(0, config.norm_groups, values / config.norm_groups);
  return builder.finish("out", rms_norm(builder, "norm", groups, config.norm_eps, true));
}

std::vector<std::string> example_configs() {
  return {
      R"({"num_heads": 4, "key_dim": 32, "value_dim": 32})",
      R"({"num_heads": 4, "num_groups": 2, "key_dim": 5, "value_dim": 3, "norm_groups": 2})",
      R"({"num_heads": 2, "key_dim": 33, "value_dim": 20, "conv_width": 1, "dt_min": 0.01, "dt_max": 0.5})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "state_space_dual",
    .summary = "Mamba-2: a state space with one scalar decay per head and token",
    .recurrence = "S = e^(dt A) S + B (x) (dt x); y = S^T C + D x",
    .source = "Dao 2024, arXiv 2405.21060, section 7; constants as in mamba_ssm",
    .state_formula = "4*(H*K*V + (W - 1)*(H*V + 2*G*K))",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::state_space_dual
