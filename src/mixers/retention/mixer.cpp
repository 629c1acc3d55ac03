#include <cmath>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::retention {

extern const MixerDef kDef;

namespace {

using kernels::Decay;

struct Config final : TransitionConfig {
  double rotary_base = 10000.0;  ///< 0: no positions
  double norm_eps = 1e-5;
};

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  read_heads(reader, *config);
  config->rotary_base = reader.number("rotary_base", 0.0, 1e12, 10000.0);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-5);
  if (config->rotary_base != 0.0 && config->rotary_base < 1.0) {
    reader.fail("rotary_base", "wanted 0 for no positions, or at least 1");
  }
  if (config->rotary_base != 0.0 && config->key_dim % 2 != 0) {
    reader.fail("key_dim", "got " + std::to_string(config->key_dim) +
                               ", wanted an even number, for channels are rotated in pairs");
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  config->decay = Decay::kPerHead;
  for (int64_t h = 0; h < config->num_heads; ++h) {
    config->head_decay.push_back(std::log1p(-std::exp2(-5.0 - static_cast<double>(h))));
  }
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t keys = config.keys_width();
  const int64_t values = config.values_width();
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice in = builder.linear("in", builder.x(), {keys, keys, values, values});
  Slice q = in.part(0, config.num_heads, config.key_dim);
  Slice k = in.part(keys, config.num_heads, config.key_dim);
  if (config.rotary_base != 0.0) {
    q = rotate_positions(builder, q, config.key_dim, config.rotary_base);
    k = rotate_positions(builder, k, config.key_dim, config.rotary_base);
  }
  const Slice v = in.part(2 * keys, config.num_heads, config.value_dim);
  const Slice gate = in.part(2 * keys + values, config.num_heads, config.value_dim);
  const Slice normed = rms_norm(builder, "norm", builder.op({q, k, v}), config.norm_eps);
  return builder.finish("out", apply_gate(builder, GateFunction::kSilu, normed, gate));
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32})", R"({"num_heads": 3, "key_dim": 6, "value_dim": 5})",
          R"({"num_heads": 1, "key_dim": 33, "value_dim": 20, "rotary_base": 0})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "retention",
    .summary = "linear attention with a fixed exponential decay per head",
    .recurrence = "S = gamma_h S + k (x) v; o = K^-1/2 S^T q",
    .source = "Sun 2023, arXiv 2307.08621, eqs. 5-8; constants as in flash-linear-attention",
    .state_formula = "4*H*K*V",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::retention
