#include <algorithm>
#include <cmath>

#include "kernels/latent_attention.h"
#include "mixers/latent_attention/latent_attention.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::latent_attention {

extern const MixerDef kDef;

namespace {

using kernels::LatentProblem;
using kernels::LatentState;

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = reader.integer("num_heads", 1, 4096);
  config->num_latents = reader.integer("num_latents", 1, 4096);
  config->key_dim = reader.integer("key_dim", 1, 4096);
  config->value_dim = reader.integer("value_dim", 1, 4096, config->key_dim);
  config->causal = reader.boolean("causal", true);
  const double inverse_root =
      1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(1, config->key_dim)));
  config->scale = reader.number("scale", 0.0, 1e6, inverse_root);
  TARN_RETURN_IF_ERROR(reader.finish());
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

OpShape op_shape(const MixerConfig& base) {
  const Config& config = config_of(&base);
  OpShape shape;
  shape.inputs = {{"q", config.num_heads, config.key_dim, OpInput::Range::kNormal},
                  {"k", config.num_heads, config.key_dim, OpInput::Range::kNormal},
                  {"v", config.num_heads, config.value_dim, OpInput::Range::kNormal}};
  shape.out_heads = config.num_heads;
  shape.out_dim = config.value_dim;
  shape.params = {{"latents",
                   {config.num_heads, config.num_latents, config.key_dim},
                   {Init::Kind::kNormal, 1.0f}}};
  return shape;
}

std::vector<StateSpec> state_specs(const MixerConfig& base) {
  const Config& config = config_of(&base);
  if (!config.causal) return {};
  return {{"log_sum", {config.num_heads, config.num_latents}, kernels::kNoLatentSum},
          {"k", {config.num_heads, config.num_latents, config.key_dim}},
          {"v", {config.num_heads, config.num_latents, config.value_dim}}};
}

LatentProblem problem_of(const OpArgs<float>& args) {
  const Config& config = config_of(args.config);
  LatentProblem problem;
  problem.sequences = args.sequences;
  problem.num_heads = config.num_heads;
  problem.num_latents = config.num_latents;
  problem.key_dim = config.key_dim;
  problem.value_dim = config.value_dim;
  problem.scale = config.scale;
  problem.causal = config.causal;
  problem.pool = args.pool;
  return problem;
}

LatentState state_of(const StateRefs<float>& state) {
  if (!state) return {};
  return {state.tensors[0], state.tensors[1], state.tensors[2]};
}

void attend(const OpArgs<float>& args) noexcept {
  kernels::latent_forward(problem_of(args), args.inputs[0], args.inputs[1], args.inputs[2],
                          args.params[0], state_of(args.state), args.out, *args.arena);
}

void backward(const OpBackwardArgs& args) noexcept {
  const OpArgs<float>& forward = args.forward;
  kernels::ConstLatentState dfinal;
  if (args.dfinal) {
    dfinal = {args.dfinal.tensors[0], args.dfinal.tensors[1], args.dfinal.tensors[2]};
  }
  kernels::latent_backward(problem_of(forward), forward.inputs[0], forward.inputs[1],
                           forward.inputs[2], forward.params[0], state_of(forward.state), args.dout,
                           dfinal, args.dinputs[0], args.dinputs[1], args.dinputs[2],
                           args.dparams[0], state_of(args.dinitial), *forward.arena);
}

/// Per token, head and latent: two scores (2·K each), the means (2·(K + V)), the output (2·V);
/// backward has the first three again, q·κ, dq, G, k·G, dk twice, dlatents (2·K each) and do·z, Z,
/// v·Z, dv (2·V each).
double flops(const MixerConfig& base, OpPass pass, int64_t tokens) {
  const Config& config = config_of(&base);
  const auto key_dim = static_cast<double>(config.key_dim);
  const auto value_dim = static_cast<double>(config.value_dim);
  const double per_latent = pass == OpPass::kBackward
                                ? 6 * key_dim + 2 * value_dim + 14 * key_dim + 8 * value_dim
                                : 6 * key_dim + 4 * value_dim;
  return static_cast<double>(config.num_heads * config.num_latents) * per_latent *
         (pass == OpPass::kStep ? 1.0 : static_cast<double>(tokens));
}

LayerProgram layer(const MixerConfig& config) {
  return projected_layer(op_shape(config), state_specs(config), config_of(&config).model_dim);
}

std::vector<std::string> example_configs() {
  return {R"({"num_heads": 4, "num_latents": 8, "key_dim": 16})",
          R"({"num_heads": 2, "num_latents": 1, "key_dim": 5, "value_dim": 3})",
          R"({"num_heads": 3, "num_latents": 17, "key_dim": 33, "value_dim": 8, "scale": 0.5})",
          R"({"num_heads": 2, "num_latents": 5, "key_dim": 7, "value_dim": 20,
              "causal": false})"};
}

}  // namespace

const MixerDef kDef{
    .name = "latent_attention",
    .summary = "learned latents gather the tokens by softmax, tokens read the latents",
    .recurrence =
        "(K_l, V_l) = mean of (k, v) weighted by exp(scale c_l.k_j); "
        "o = softmax_l(scale q.K_l) V_l",
    .source = "Jaegle 2021, arXiv 2103.03206, section 3; causal: Peng 2022, arXiv 2110.02488",
    .state_formula = "4*H*L*(K + V + 1)",
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
    .layer = layer,
    .example_configs = example_configs,
};

}  // namespace tarn::mixers::latent_attention
