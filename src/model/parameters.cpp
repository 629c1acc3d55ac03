#include "model/parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/rng.h"
#include "mixers/layer.h"

namespace tarn::model {
namespace {

using mixers::Init;
using mixers::ParamSpec;

// Log scales of the logistic mixture at the start: exp(-2) = 0.14 makes ten components, 0.22
// apart, one smooth and nearly flat density over [-1, 1].
constexpr float kStartLogScale = -2.0f;

Init constant(float value) { return {Init::Kind::kConstant, value, 0}; }

/// torch's Linear: uniform in ±1/√fan_in.
Init linear_start(int64_t fan_in) {
  return {Init::Kind::kUniform, 1.0f / std::sqrt(static_cast<float>(fan_in)), 0};
}

void add_norm(const ModelConfig& config, const std::string& name, std::vector<ParamSpec>& table) {
  table.push_back({name + ".weight", {config.model_dim}, constant(1.0f), false});
  if (config.norm == NormKind::kLayerNorm) {
    table.push_back({name + ".bias", {config.model_dim}, constant(0.0f), false});
  }
}

void add_linear(const std::string& name, int64_t out_dim, int64_t in_dim, Init bias,
                std::vector<ParamSpec>& table) {
  table.push_back({name + ".weight", {out_dim, in_dim}, linear_start(in_dim), true});
  table.push_back({name + ".bias", {out_dim}, bias, false});
}

/// Levels of an image are ordered, symbols of a text are not.
Init token_start(const ModelConfig& config, float scale) {
  const bool ordered = config.modality == Modality::kImage && config.head.classes > 1;
  return {ordered ? Init::Kind::kOrdinal : Init::Kind::kNormal, scale,
          ordered ? config.head.classes : 0};
}

Init position_start(const ModelConfig& config) {
  if (config.position_period == 0) return {Init::Kind::kNormal, config.embedding_scale, 0};
  // √2: the root mean square of a sinusoid is its amplitude over √2.
  return {Init::Kind::kGridSinusoid, config.embedding_scale * std::sqrt(2.0f),
          config.position_period};
}

void fill_grid_sinusoid(const ParamSpec& spec, float* values) {
  TARN_CHECK(spec.shape.size() == 2 && spec.init.period > 0);
  const int64_t rows = spec.shape[0], dim = spec.shape[1], period = spec.init.period;
  const int64_t half = dim / 2;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t channel = 0; channel < dim; ++channel) {
      const bool second = channel >= half;
      const int64_t c = second ? channel - half : channel;
      const int64_t n = second ? dim - half : half;
      const int64_t u = second ? row % period : row / period;
      const double frequency =
          std::numbers::pi * static_cast<double>(c / 2 + 1) / static_cast<double>((n + 1) / 2);
      const double angle = static_cast<double>(u) * frequency;
      const double value = c % 2 == 0 ? std::sin(angle) : std::cos(angle);
      values[row * dim + channel] =
          static_cast<float>(static_cast<double>(spec.init.scale) * value);
    }
  }
}

void fill_ordinal(const ParamSpec& spec, Philox& rng, float* values) {
  constexpr int64_t kCurves = 16;
  const int64_t rows = spec.shape[0], dim = spec.shape[1];
  const int64_t levels = std::min(rows, spec.init.period);
  TARN_CHECK(spec.shape.size() == 2 && levels > 1);
  std::vector<double> curves(static_cast<size_t>(kCurves * dim));
  double power = 0.0;  // of the weighted cosines, on average over levels
  for (int64_t k = 0; k < kCurves; ++k) {
    const double weight = 1.0 / (1.0 + 0.3 * static_cast<double>(k + 1));
    power += 0.5 * weight * weight;
    for (int64_t c = 0; c < dim; ++c) {
      curves[static_cast<size_t>(k * dim + c)] = weight * static_cast<double>(rng.next_normal());
    }
  }
  const double scale = static_cast<double>(spec.init.scale);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < dim; ++c) {
      const double noise = static_cast<double>(rng.next_normal());
      double curve = 0.0;
      for (int64_t k = 0; row < levels && k < kCurves; ++k) {
        const double angle =
            std::numbers::pi * static_cast<double>((k + 1) * row) / static_cast<double>(levels - 1);
        curve += std::cos(angle) * curves[static_cast<size_t>(k * dim + c)];
      }
      const double value = row < levels ? curve / std::sqrt(power) + 0.1 * noise : noise;
      values[row * dim + c] = static_cast<float>(scale * value);
    }
  }
}

void fill_mixture_bias(const ParamSpec& spec, float* values) {
  const int64_t components = spec.init.period;
  TARN_CHECK(components > 0 && element_count(spec.shape) == 3 * components);
  for (int64_t c = 0; c < components; ++c) {
    values[c] = 0.0f;
    values[components + c] =
        components == 1
            ? 0.0f
            : static_cast<float>(
                  2.0 * static_cast<double>(c) / static_cast<double>(components - 1) - 1.0);
    values[2 * components + c] = spec.init.scale;
  }
}

float between(const Init& init, Philox& rng) {
  return init.scale + (init.high - init.scale) * rng.next_open_uniform();
}

/// softplus⁻¹(Δ) = log(e^Δ − 1).
void fill_step_size(const ParamSpec& spec, Philox& rng, float* values) {
  const Init logs{Init::Kind::kUniform, std::log(spec.init.scale), 0, std::log(spec.init.high)};
  for (int64_t i = 0; i < element_count(spec.shape); ++i) {
    const double step = std::exp(static_cast<double>(between(logs, rng)));
    values[i] = static_cast<float>(std::log(std::expm1(step)));
  }
}

void fill_ramp(const ParamSpec& spec, float* values) {
  const int64_t columns = spec.init.period;
  TARN_CHECK(columns > 0 && element_count(spec.shape) % columns == 0);
  for (int64_t i = 0; i < element_count(spec.shape); ++i) {
    const auto part =
        columns == 1 ? 0.0f : static_cast<float>(i % columns) / static_cast<float>(columns - 1);
    const float value = spec.init.scale + (spec.init.high - spec.init.scale) * part;
    values[i] = spec.init.kind == Init::Kind::kLogRamp ? std::log(value) : value;
  }
}

void fill_identity(const ParamSpec& spec, float* values) {
  TARN_CHECK(spec.shape.size() >= 2);
  const int64_t columns = spec.shape.back();
  const int64_t rows = spec.shape[spec.shape.size() - 2];
  for (int64_t i = 0; i < element_count(spec.shape); ++i) {
    values[i] = i / columns % rows == i % columns ? 1.0f : 0.0f;
  }
}

/// Gram–Schmidt over the shorter side's vectors, twice for each, so that rounding leaves no part of
/// the earlier ones.
void fill_orthogonal(const ParamSpec& spec, Philox& rng, float* values) {
  TARN_CHECK(spec.shape.size() == 2);
  const bool high = spec.shape[0] > spec.shape[1];
  const int64_t count = std::min(spec.shape[0], spec.shape[1]);
  const int64_t size = std::max(spec.shape[0], spec.shape[1]);
  std::vector<double> vectors(static_cast<size_t>(count * size));
  for (int64_t i = 0; i < count; ++i) {
    double* vector = vectors.data() + i * size;
    for (int64_t c = 0; c < size; ++c) vector[c] = static_cast<double>(rng.next_normal());
    for (int64_t j = 0; j < 2 * i; ++j) {
      const double* other = vectors.data() + j % i * size;
      const double along = std::inner_product(vector, vector + size, other, 0.0);
      for (int64_t c = 0; c < size; ++c) vector[c] -= along * other[c];
    }
    const double norm = std::sqrt(std::inner_product(vector, vector + size, vector, 0.0));
    for (int64_t c = 0; c < size; ++c) {
      vector[c] /= norm;
      values[high ? c * count + i : i * size + c] =
          static_cast<float>(static_cast<double>(spec.init.scale) * vector[c]);
    }
  }
}

}  // namespace

std::vector<ParamSpec> parameter_table(const ModelConfig& config) {
  std::vector<ParamSpec> table;
  const int64_t dim = config.model_dim;
  const auto add_token_table = [&](const std::string& name, float scale) {
    table.push_back({name, {config.vocabulary, dim}, token_start(config, scale), false});
  };
  if (config.modality == Modality::kFrames) {
    add_linear("embedding.input", dim, config.input_width(), constant(0.0f), table);
  } else {
    add_token_table("embedding.token.weight", config.embedding_scale);
  }
  if (config.position == PositionKind::kLearned) {
    table.push_back(
        {"embedding.position.weight", {config.max_tokens, dim}, position_start(config), false});
  }
  // Together the earlier inputs start as loud as the newest.
  const auto lags = static_cast<float>(config.embedding_lags.size());
  for (const int64_t lag : config.embedding_lags) {
    add_token_table("embedding.lag_" + std::to_string(lag) + ".weight",
                    config.embedding_scale / std::sqrt(lags));
  }
  if (config.embedding_norm) add_norm(config, "embedding.norm", table);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const std::string prefix = "layers." + std::to_string(i) + ".";
    add_norm(config, prefix + "norm1", table);
    for (ParamSpec& spec : mixers::layer_params(*layer.mixer, *layer.mixer_config)) {
      spec.name = prefix + "mixer." + spec.name;
      table.push_back(std::move(spec));
    }
    if (!layer.has_mlp()) continue;
    add_norm(config, prefix + "norm2", table);
    add_linear(prefix + "mlp.up", layer.mlp_hidden_dim, dim, constant(0.0f), table);
    add_linear(prefix + "mlp.down", dim, layer.mlp_hidden_dim, constant(0.0f), table);
  }
  if (config.final_norm) add_norm(config, "final_norm", table);
  const bool mixture = config.head.kind == HeadKind::kDiscretisedLogisticMixture;
  add_linear("head", config.head.output_dim(), dim,
             mixture ? Init{Init::Kind::kMixtureBias, kStartLogScale, config.head.components}
                     : constant(0.0f),
             table);
  return table;
}

void initialise(const ParamSpec& spec, uint64_t seed, float* values) {
  const int64_t count = element_count(spec.shape);
  Philox rng{seed, xxh3_64(spec.name.data(), static_cast<int64_t>(spec.name.size())), 0};
  switch (spec.init.kind) {
    case Init::Kind::kConstant: std::fill(values, values + count, spec.init.scale); return;
    case Init::Kind::kNormal:
      for (int64_t i = 0; i < count; ++i) values[i] = spec.init.scale * rng.next_normal();
      return;
    case Init::Kind::kUniform:
      for (int64_t i = 0; i < count; ++i) {
        values[i] = spec.init.scale * (2.0f * rng.next_open_uniform() - 1.0f);
      }
      return;
    case Init::Kind::kGridSinusoid: fill_grid_sinusoid(spec, values); return;
    case Init::Kind::kOrdinal: fill_ordinal(spec, rng, values); return;
    case Init::Kind::kMixtureBias: fill_mixture_bias(spec, values); return;
    case Init::Kind::kInterval:
      for (int64_t i = 0; i < count; ++i) values[i] = between(spec.init, rng);
      return;
    case Init::Kind::kLogUniform:
      for (int64_t i = 0; i < count; ++i) values[i] = std::log(between(spec.init, rng));
      return;
    case Init::Kind::kStepSize: fill_step_size(spec, rng, values); return;
    case Init::Kind::kRamp:
    case Init::Kind::kLogRamp: fill_ramp(spec, values); return;
    case Init::Kind::kIdentity: fill_identity(spec, values); return;
    case Init::Kind::kFormula:
      for (int64_t i = 0; i < count; ++i) {
        values[i] = static_cast<float>(spec.init.formula(i, spec.init.arguments));
      }
      return;
    case Init::Kind::kOrthogonal: fill_orthogonal(spec, rng, values); return;
  }
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace tarn::model
