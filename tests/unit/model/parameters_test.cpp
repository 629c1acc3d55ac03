#include "model/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>

#include "base/buffer.h"
#include "mixers/layer.h"
#include "unit/model/configs.h"

namespace tarn::model {
namespace {

using mixers::Init;
using mixers::ParamSpec;

const ParamSpec* find(const std::vector<ParamSpec>& table, const std::string& name) {
  for (const ParamSpec& spec : table) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

std::vector<float> start(const ParamSpec& spec, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(element_count(spec.shape)), NAN);
  initialise(spec, seed, values.data());
  return values;
}

TEST(ParameterTable, FollowsTheOptions) {
  Json json = small_config();
  Json layer = (*json.find("layers")->as_array())[0];
  layer.set("repeat", 1);
  Json without = layer;
  without.set("mlp", Json());
  json.set("layers", Json::Array{without, layer});
  const std::vector<ParamSpec> plain = parameter_table(config_of(json));
  EXPECT_EQ(find(plain, "embedding.norm.weight"), nullptr);
  EXPECT_EQ(find(plain, "layers.0.norm2.weight"), nullptr);
  EXPECT_EQ(find(plain, "layers.0.mlp.up.weight"), nullptr);
  EXPECT_NE(find(plain, "layers.1.norm2.weight"), nullptr);
  json.set("embedding_norm", true);
  const std::vector<ParamSpec> table = parameter_table(config_of(json));
  EXPECT_EQ(table.size(), plain.size() + 2);
  EXPECT_EQ(table[2].name, "embedding.norm.weight");
  EXPECT_EQ(table[3].name, "embedding.norm.bias");
  EXPECT_EQ(start(table[2], 1), std::vector<float>(12, 1.0f));
}

TEST(ParameterTable, HasTheDocumentedNamesAndShapes) {
  const std::vector<ParamSpec> table = parameter_table(config_of(small_config()));
  std::vector<std::string> names;
  for (const ParamSpec& spec : table) {
    names.push_back(spec.name);
    for (const float value : start(spec, 1)) ASSERT_TRUE(std::isfinite(value)) << spec.name;
  }
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.front(), "embedding.token.weight");
  EXPECT_EQ(names[1], "embedding.position.weight");
  EXPECT_EQ(names[2], "layers.0.norm1.weight");
  EXPECT_EQ(names.back(), "head.bias");
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(find(table, "embedding.token.weight")->shape, (Shape{11, 12}));
  EXPECT_EQ(find(table, "embedding.position.weight")->shape, (Shape{40, 12}));
  EXPECT_EQ(find(table, "layers.1.norm2.bias")->shape, (Shape{12}));
  EXPECT_EQ(find(table, "layers.1.mlp.up.weight")->shape, (Shape{17, 12}));
  EXPECT_EQ(find(table, "layers.1.mlp.down.weight")->shape, (Shape{12, 17}));
  EXPECT_EQ(find(table, "head.weight")->shape, (Shape{10, 12}));
  EXPECT_EQ(find(table, "final_norm.weight")->shape, (Shape{12}));
  EXPECT_TRUE(find(table, "head.weight")->weight_decay);
  EXPECT_TRUE(find(table, "layers.0.mlp.up.weight")->weight_decay);
  for (const char* name : {"embedding.token.weight", "embedding.position.weight", "head.bias",
                           "layers.0.norm1.weight", "layers.0.mlp.up.bias"}) {
    EXPECT_FALSE(find(table, name)->weight_decay) << name;
  }
  const LayerConfig layer = config_of(small_config()).layers[0];
  for (const ParamSpec& spec : mixers::layer_params(*layer.mixer, *layer.mixer_config)) {
    ASSERT_NE(find(table, "layers.0.mixer." + spec.name), nullptr);
    EXPECT_EQ(find(table, "layers.1.mixer." + spec.name)->shape, spec.shape);
  }
}

TEST(ParameterTable, FollowsTheConfig) {
  Json json = small_config();
  json.set("position", json_of(R"({"kind": "sinusoidal"})"));
  json.set("norm", json_of(R"({"kind":"rms_norm","placement":"pre","final":false})"));
  const std::vector<ParamSpec> table = parameter_table(config_of(json));
  for (const char* name :
       {"embedding.position.weight", "layers.0.norm1.bias", "final_norm.weight"}) {
    EXPECT_EQ(find(table, name), nullptr) << name;
  }
}

TEST(Initialise, IsAFunctionOfSeedAndName) {
  const ParamSpec normal{"a", {1000, 100}, {Init::Kind::kNormal, 0.5f, 0}, false};
  const std::vector<float> values = start(normal, 1);
  EXPECT_EQ(start(normal, 1), values);
  EXPECT_NE(start(normal, 2), values);
  ParamSpec renamed = normal;
  renamed.name = "b";
  EXPECT_NE(start(renamed, 1), values);
  // Mean and variance of n draws: standard errors σ/√n and σ²·√(2/n); five of them.
  const double n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  EXPECT_LT(std::abs(sum / n), 5 * 0.5 / std::sqrt(n));
  EXPECT_LT(std::abs(squares / n - 0.25), 5 * 0.25 * std::sqrt(2 / n));
}

TEST(Initialise, UniformFillsItsInterval) {
  const ParamSpec uniform{"a", {100'000}, {Init::Kind::kUniform, 0.25f, 0}, true};
  const std::vector<float> values = start(uniform, 3);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -0.25f);
  EXPECT_LE(*high, 0.25f);
  // The chance that 100,000 draws leave a gap of 0.01 % of the interval at an end is e^-10.
  EXPECT_LT(*low, -0.25f + 0.5f * 1e-4f);
  EXPECT_GT(*high, 0.25f - 0.5f * 1e-4f);
}

TEST(Initialise, IntervalsNeedNotBeCentred) {
  const ParamSpec spec{"a", {100'000}, {Init::Kind::kInterval, -7.0f, 0, -2.0f}, false};
  const std::vector<float> values = start(spec, 3);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -7.0f);
  EXPECT_LT(*low, -7.0f + 5e-4f);
  EXPECT_LE(*high, -2.0f);
  EXPECT_GT(*high, -2.0f - 5e-4f);
}

TEST(Initialise, LinearWeightsStartAsTorchs) {
  const std::vector<ParamSpec> table = parameter_table(config_of(small_config()));
  const ParamSpec& down = *find(table, "layers.0.mlp.down.weight");
  EXPECT_EQ(down.init.kind, Init::Kind::kUniform);
  EXPECT_FLOAT_EQ(down.init.scale, 1.0f / std::sqrt(17.0f));
  EXPECT_EQ(start(*find(table, "layers.0.norm1.weight"), 1), std::vector<float>(12, 1.0f));
  EXPECT_EQ(start(*find(table, "layers.0.norm1.bias"), 1), std::vector<float>(12, 0.0f));
}

TEST(Initialise, GridSinusoidKnowsRowsAndColumns) {
  Json json = small_config();
  json.set("model_dim", 10);
  json.set("position", json_of(R"({"kind": "learned", "grid_width": 8})"));
  const std::vector<ParamSpec> table = parameter_table(config_of(json));
  const ParamSpec& spec = *find(table, "embedding.position.weight");
  const std::vector<float> values = start(spec, 1);
  EXPECT_EQ(start(spec, 2), values);  // no randomness in it
  const int64_t dim = 10, half = 5;
  const auto at = [&](int64_t row, int64_t c) {
    return values[static_cast<size_t>(row * dim + c)];
  };
  for (int64_t row = 0; row < 40; ++row) {
    for (int64_t c = 0; c < dim; ++c) {
      // Same line, same first half; same column, same second half.
      EXPECT_EQ(at(row, c), at(c < half ? row / 8 * 8 : row % 8, c));
    }
  }
  const double amplitude = 0.5 * std::sqrt(2.0);
  const double tolerance = 4 * 6e-8 * amplitude;
  // Half of 5 channels: three pairs, the last one half a turn per step.
  const double third = std::numbers::pi / 3.0;
  EXPECT_NEAR(at(16, 0), amplitude * std::sin(2.0 * third), tolerance);
  EXPECT_NEAR(at(16, 1), amplitude * std::cos(2.0 * third), tolerance);
  EXPECT_NEAR(at(16, 2), amplitude * std::sin(4.0 * third), tolerance);
  EXPECT_NEAR(at(3, 8), amplitude * std::cos(6.0 * third), tolerance);
}

TEST(Initialise, LevelsOfAnImageStartInOrder) {
  const ParamSpec spec{"levels", {257, 64}, {Init::Kind::kOrdinal, 0.5f, 256}, false};
  const std::vector<float> values = start(spec, 3);
  const auto distance = [&](int64_t a, int64_t b) {
    double sum = 0.0;
    for (int64_t c = 0; c < 64; ++c) {
      const double delta = static_cast<double>(values[static_cast<size_t>(a * 64 + c)]) -
                           static_cast<double>(values[static_cast<size_t>(b * 64 + c)]);
      sum += delta * delta;
    }
    return std::sqrt(sum / 64.0);
  };
  for (int64_t v = 10; v + 60 < 256; v += 20) {
    EXPECT_LT(distance(v, v + 1), 0.4 * distance(v, v + 60)) << v;
  }
  double square = 0.0;
  for (const float value : values) square += static_cast<double>(value) * value;
  // Root mean square near the scale: 64 channels of 16 random curves.
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(values.size())), 0.5, 0.1);
}

TEST(Initialise, FormulasGiveEachValue) {
  ParamSpec spec{"formula", {2, 3}, {Init::Kind::kFormula}, false};
  spec.init.arguments = {0.5, 0.25};
  spec.init.formula = [](int64_t i, const std::array<double, 3>& arguments) {
    return arguments[0] * static_cast<double>(i) + arguments[1];
  };
  EXPECT_EQ(start(spec, 1), (std::vector<float>{0.25f, 0.75f, 1.25f, 1.75f, 2.25f, 2.75f}));
}

TEST(Initialise, OrthogonalMatricesAreThat) {
  constexpr float kScale = 0.5f;
  for (const auto& [rows, columns] : {std::pair{40, 40}, {7, 30}, {30, 7}, {1, 5}}) {
    const ParamSpec spec{"orthogonal", {rows, columns}, {Init::Kind::kOrthogonal, kScale}, true};
    const std::vector<float> values = start(spec, 3);
    EXPECT_NE(start(spec, 4), values);
    const bool high = rows > columns;
    const int count = std::min(rows, columns), size = std::max(rows, columns);
    const auto at = [&](int i, int c) {
      return double{values[static_cast<size_t>(high ? c * columns + i : i * columns + c)]};
    };
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j <= i; ++j) {
        double product = 0.0;
        for (int c = 0; c < size; ++c) product += at(i, c) * at(j, c);
        EXPECT_NEAR(product, i == j ? kScale * kScale : 0.0, 1e-7) << rows << 'x' << columns;
      }
    }
  }
}

TEST(Initialise, MixtureHeadStartsSpread) {
  Json json = small_config();
  json.set("head",
           json_of(R"({"kind":"discretised_logistic_mixture","components":3,"levels":10})"));
  const std::vector<ParamSpec> table = parameter_table(config_of(json));
  EXPECT_EQ(start(*find(table, "head.bias"), 1),
            (std::vector<float>{0, 0, 0, -1, 0, 1, -2, -2, -2}));
}

}  // namespace
}  // namespace tarn::model
