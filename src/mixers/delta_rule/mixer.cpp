#include <cmath>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::delta_rule {

extern const MixerDef kDef;

namespace {

using kernels::Erase;

struct Config final : TransitionConfig {
  int64_t conv_width = 4;
  bool negative_eigenvalues = false;  ///< beta in (0, 2) instead of (0, 1)
  double norm_eps = 1e-5;
};

constexpr double kL2Eps = 1e-6;

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  read_heads(reader, *config);
  config->conv_width = reader.integer("conv_width", 1, 64, 4);
  config->negative_eigenvalues = reader.boolean("negative_eigenvalues", false);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 1e-5);
  TARN_RETURN_IF_ERROR(reader.finish());
  config->erase = Erase::kDelta;
  config->has_beta = true;
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t keys = config.keys_width();
  const int64_t values = config.values_width();
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice in = builder.linear("in", builder.x(), {keys, keys, values, config.num_heads});
  const Slice mixed = short_convolution(builder, "conv", in.part(0, 1, 2 * keys + values),
                                        config.conv_width, false);
  const Slice q = l2_norm(builder, mixed.part(0, config.num_heads, config.key_dim), kL2Eps);
  const Slice k = l2_norm(builder, mixed.part(keys, config.num_heads, config.key_dim), kL2Eps);
  const Slice v = mixed.part(2 * keys, config.num_heads, config.value_dim);
  const Slice beta = apply_function(builder, GateFunction::kSigmoid,
                                    in.part(2 * keys + values, config.num_heads, 1),
                                    config.negative_eigenvalues ? 2.0 : 1.0);
  return builder.finish("out",
                        rms_norm(builder, "norm", builder.op({q, k, v, beta}), config.norm_eps));
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "key_dim": 32})",
          R"({"num_heads": 2, "key_dim": 5, "value_dim": 3, "negative_eigenvalues": true})",
          R"({"num_heads": 1, "key_dim": 33, "value_dim": 20, "conv_width": 1})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "delta_rule",
    .summary = "fast weights that replace what a key held before",
    .recurrence = "S = S + beta k (x) (v - S^T k); o = K^-1/2 S^T q",
    .source = "Schlag 2021, arXiv 2102.11174, eq. 24; Yang 2024, arXiv 2406.06484; constants as in "
              "flash-linear-attention",
    .state_formula = "4*(H*K*V + (W - 1)*H*(2*K + V))",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::delta_rule
