#include <cmath>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::lightning_attention {

extern const MixerDef kDef;

namespace {

using kernels::Decay;

struct Config final : TransitionConfig {
  double norm_eps = 1e-6;
};

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = reader.integer("num_heads", 1, 4096);
  config->num_key_heads = config->num_heads;
  config->key_dim = reader.integer("key_dim", 1, 4096);
  config->value_dim = config->key_dim;
  const int64_t layers = reader.integer("num_layers", 1, 4096, 1);
  const int64_t index = reader.integer("layer_index", 0, layers - 1, 0);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-6);
  TARN_RETURN_IF_ERROR(reader.finish());
  config->decay = Decay::kPerHead;
  // 1e-5 twice, as the published models have it: it keeps the last layer's decay above zero.
  const double depth = static_cast<double>(index) / (static_cast<double>(layers) - 1.0 + 1e-5);
  for (int64_t h = 0; h < config->num_heads; ++h) {
    const double exponent =
        -8.0 * static_cast<double>(h + 1) / static_cast<double>(config->num_heads);
    config->head_decay.push_back(-std::exp2(exponent) * (1.0 - depth + 1e-5));
  }
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t width = config.values_width();
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice in = builder.linear("in", builder.x(), {width, width, width, width});
  const Slice rows = apply_function(builder, GateFunction::kSilu, in.part(0, 1, 3 * width));
  const Slice q = rows.part(0, config.num_heads, config.key_dim);
  const Slice k = rows.part(width, config.num_heads, config.key_dim);
  const Slice v = rows.part(2 * width, config.num_heads, config.key_dim);
  // One norm over all heads.
  const Slice out = builder.op({q, k, v}).part(0, 1, width);
  const Slice normed = rms_norm(builder, "norm", out, config.norm_eps);
  const Slice gate = in.part(3 * width, 1, width);
  return builder.finish("out", apply_gate(builder, GateFunction::kSigmoid, normed, gate));
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32})",
          R"({"num_heads": 3, "key_dim": 5, "layer_index": 2, "num_layers": 4})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "lightning_attention",
    .summary = "linear attention of SiLU rows with a fixed decay per head and depth",
    .recurrence = "S = e^-slope S + k (x) v; o = S^T q",
    .source = "Qin 2024, arXiv 2401.04658; constants as in MiniMax-Text-01, arXiv 2501.08313",
    .state_formula = "4*H*K*K",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::lightning_attention
