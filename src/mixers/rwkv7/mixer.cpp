#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "mixers/common/stages.h"
#include "mixers/common/transition.h"
#include "mixers/layer_program.h"
#include "mixers/rwkv7/rwkv7.h"

namespace tarn::mixers::rwkv7 {

extern const MixerDef kDef;

namespace {

using kernels::Decay;
using kernels::Erase;

constexpr double kSmallestNorm = 1e-12;  // of a removal key, as torch's normalize has it

enum class ValueResidual : uint8_t { kSource, kMixed, kNone };

struct Config final : TransitionConfig {
  int64_t decay_rank = 0;
  int64_t learning_rate_rank = 0;
  int64_t value_rank = 0;
  int64_t gate_rank = 0;
  ValueResidual values = ValueResidual::kSource;
  double norm_eps = 64e-5;
  /// Where the layer stands, of the starts alone: depth / (layers − 1) and depth / layers.
  double from_first = 0.0;
  double passed = 0.0;
  double norm_start = 1.0;
};

Result<std::shared_ptr<const MixerConfig>> read_config(JsonReader& reader, int64_t model_dim) {
  auto config = std::make_shared<Config>();
  config->model_dim = model_dim;
  config->num_heads = reader.integer("num_heads", 1, 4096);
  config->num_key_heads = config->num_heads;
  config->key_dim = reader.integer("key_dim", 1, 4096);
  config->value_dim = config->key_dim;
  config->decay_rank = reader.integer("decay_rank", 1, 65536);
  config->learning_rate_rank = reader.integer("learning_rate_rank", 1, 65536);
  config->gate_rank = reader.integer("gate_rank", 1, 65536);
  config->values =
      static_cast<ValueResidual>(reader.choice("value_residual", {"source", "mixed", "none"}));
  // Published configs say it for all layers; only mixed ones have such matrices.
  config->value_rank = config->values == ValueResidual::kMixed
                           ? reader.integer("value_rank", 1, 65536)
                           : reader.integer("value_rank", 1, 65536, 1);
  config->norm_eps = reader.number("norm_eps", 0.0, 1.0, 64e-5);
  const int64_t layers = reader.integer("num_layers", 1, 4096, 1);
  const int64_t index = reader.integer("layer_index", 0, layers - 1, 0);
  TARN_RETURN_IF_ERROR(reader.finish());
  config->decay = Decay::kPerChannel;
  config->erase = Erase::kRankOne;
  const auto depth = static_cast<double>(index);
  if (layers > 1) config->from_first = depth / static_cast<double>(layers - 1);
  config->passed = depth / static_cast<double>(layers);
  config->norm_start = std::pow((depth + 1.0) / static_cast<double>(layers), 0.7);
  return std::shared_ptr<const MixerConfig>(std::move(config));
}

using Arguments = std::array<double, 3>;

/// A start that is a function of the channel and of `arguments`.
Init formula(Arguments arguments, double (*value_of)(int64_t index, const Arguments& arguments)) {
  Init init{Init::Kind::kFormula};
  init.formula = value_of;
  init.arguments = arguments;
  return init;
}

/// Channel c of `count`, as a part of the way to the last, minus a half.
double slope(int64_t c, double count) {
  return count > 1.0 ? static_cast<double>(c) / (count - 1.0) - 0.5 : -0.5;
}

/// From −1 at a head's first channel to 1 at its last, squared with its sign.
double within_head(int64_t c, double dim) {
  if (dim == 1.0) return 0.0;
  const double middle = 0.5 * (dim - 1.0);
  const double part = (static_cast<double>(c % static_cast<int64_t>(dim)) - middle) / middle;
  return part * std::abs(part);
}

/// 1 − (c / D)^power per blend.
Init mix_start(const Config& config) {
  return formula({static_cast<double>(config.model_dim), 1.0 - config.passed},
                 [](int64_t i, const Arguments& arguments) {
                   constexpr double kPowers[] = {0.2, 0.9, 0.7, 0.7, 0.9, 0.2};  // r, w, k, v, a, g
                   const auto dim = static_cast<int64_t>(arguments[0]);
                   const double part = static_cast<double>(i % dim) / arguments[0];
                   return 1.0 - std::pow(part, kPowers[i / dim] * arguments[1]);
                 });
}

/// x1ᵀ f(·) x2ᵀ + x0: parameters N1 [rank, D] from zero, N2 [width, rank] and, with a start for it, N0.
Slice low_rank(LayerBuilder& builder, const std::string& letter, const Slice& x, int64_t rank,
               int64_t width, GateFunction function, std::optional<Init> bias) {
  LayerBuilder::LinearOptions down;
  down.start = Init{Init::Kind::kConstant, 0.0f};
  down.weight_name = letter + "1";
  const Slice low = builder.linear(letter, x, {rank}, down);
  const Slice inner =
      function == GateFunction::kIdentity ? low : apply_function(builder, function, low);
  LayerBuilder::LinearOptions up;
  up.start = Init{Init::Kind::kOrthogonal, 0.1f};
  up.weight_name = letter + "2";
  up.bias = bias.has_value();
  if (bias) up.bias_start = *bias;
  up.bias_name = letter + "0";
  return builder.linear(letter, inner, {width}, up);
}

Slice projection(LayerBuilder& builder, const Config& config, const std::string& name,
                 const Slice& x, float scale) {
  const float bound = scale / std::sqrt(static_cast<float>(config.model_dim));
  return builder
      .linear(name, x, {config.keys_width()}, {.start = Init{Init::Kind::kUniform, bound}})
      .part(0, config.num_heads, config.key_dim);
}

/// log w = −e^(−1/2)·σ(w0 + tanh(x W1) W2).
Slice log_decay_of(LayerBuilder& builder, const Config& config, const Slice& x) {
  const int64_t width = config.keys_width();
  const Init start = formula({static_cast<double>(width), static_cast<double>(config.key_dim),
                              1.0 + std::pow(config.from_first, 0.3)},
                             [](int64_t c, const Arguments& arguments) {
                               const double part = slope(c, arguments[0]) + 0.5;
                               const double speed = -6.0 + 6.0 * std::pow(part, arguments[2]);
                               return speed + 0.5 + 2.5 * within_head(c, arguments[1]);
                             });
  const Slice raw = low_rank(builder, "w", x, config.decay_rank, width, GateFunction::kTanh, start);
  return apply_function(builder, GateFunction::kSigmoid, raw, -std::exp(-0.5));
}

/// a = σ(a0 + x A1 A2).
Slice learning_rate_of(LayerBuilder& builder, const Config& config, const Slice& x) {
  const int64_t width = config.keys_width();
  const Init start =
      formula({static_cast<double>(width), static_cast<double>(config.key_dim)},
              [](int64_t c, const Arguments& arguments) {
                return -0.19 + 0.3 * within_head(c, arguments[1]) + 0.4 * slope(c, arguments[0]);
              });
  const Slice raw =
      low_rank(builder, "a", x, config.learning_rate_rank, width, GateFunction::kIdentity, start);
  return apply_function(builder, GateFunction::kSigmoid, raw);
}

Slice values_of(LayerBuilder& builder, const Config& config, const Slice& x) {
  const Slice own = projection(builder, config, "value", x, 0.5f);
  if (config.values == ValueResidual::kSource) builder.hand_on(own);
  if (config.values != ValueResidual::kMixed) return own;
  const int64_t width = config.values_width();
  const Slice first = builder.receive(width);
  const Init start = formula(
      {static_cast<double>(width)},
      [](int64_t c, const Arguments& arguments) { return 0.73 - 0.4 * slope(c, arguments[0]); });
  const Slice gate =
      low_rank(builder, "v", x, config.value_rank, width, GateFunction::kIdentity, start);
  return value_residual(builder, own, first, apply_function(builder, GateFunction::kSigmoid, gate));
}

LayerProgram layer(const MixerConfig& base) {
  const auto& config = static_cast<const Config&>(base);
  const int64_t width = config.keys_width();
  LayerBuilder builder(transition_shape(base), transition_states(base), config.model_dim);
  const Slice blends = token_shift(builder, builder.x(), 6, mix_start(config));
  const auto blend = [&](int64_t i) {
    return blends.part(i * config.model_dim, 1, config.model_dim);
  };
  const Slice r = projection(builder, config, "receptance", blend(0), 0.5f);
  const Slice g = log_decay_of(builder, config, blend(1));
  const Slice key = projection(builder, config, "key", blend(2), 0.05f);
  const Slice v = values_of(builder, config, blend(3));
  const Slice eta = learning_rate_of(builder, config, blend(4));
  const Slice gate = low_rank(builder, "g", blend(5), config.gate_rank, width,
                              GateFunction::kSigmoid, std::nullopt);
  const Init removal_start = formula(
      {static_cast<double>(width)},
      [](int64_t c, const Arguments& arguments) { return 0.71 - 0.1 * slope(c, arguments[0]); });
  const Slice kappa =
      l2_norm(builder, scale_channels(builder, "k_k", key, removal_start), kSmallestNorm, true);
  const Slice k = replacement_key(builder, "k_a", key, eta, {Init::Kind::kConstant, 1.02f});
  const Slice out = builder.op({r, k, v, g, kappa, eta});
  const Slice normed =
      group_norm(builder, "norm", out, config.norm_eps, static_cast<float>(config.norm_start));
  const Slice sum = add_bonus(builder, "r_k", normed, r, k, v, -0.04f);
  return builder.finish("out", apply_gate(builder, GateFunction::kIdentity, sum, gate),
                        {.start = Init{Init::Kind::kConstant, 0.0f}});
}

std::vector<std::string> example_configs() {
  const std::string even = R"({"num_heads": 4, "key_dim": 32, "decay_rank": 8, )"
                           R"("learning_rate_rank": 8, "value_rank": 8, "gate_rank": 16, )";
  const std::string odd = R"({"num_heads": 2, "key_dim": 5, "decay_rank": 3, )"
                          R"("learning_rate_rank": 2, "gate_rank": 7, )";
  return {even + R"("value_residual": "source"})", even + R"("value_residual": "mixed"})",
          odd + R"("value_residual": "source", "layer_index": 1, "num_layers": 3})",
          odd + R"("value_residual": "mixed", "value_rank": 1, "norm_eps": 1e-5})",
          odd + R"("value_residual": "none"})"};
}

}  // namespace

constinit const MixerDef kDef = transition_mixer({
    .name = "rwkv7",
    .summary = "RWKV-7's time mixing: decay per channel and a removal along a key of its own",
    .recurrence = "S = diag(w) S - (eta kappa) (x) (S^T kappa) + k (x) v; o = S^T r",
    .source = "Peng 2025, arXiv 2503.14456, time mixing; constants as in flash-linear-attention",
    .state_formula = "4*(H*K*K + D)",
    .read_config = read_config,
    .layer = layer,
    .example_configs = example_configs,
});

}  // namespace tarn::mixers::rwkv7
