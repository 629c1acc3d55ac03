// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "conformance/harness.h"
#include "mixers/layer_program.h"

namespace tarn::mixers::rwkv7 {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("rwkv7", "test"); }

Json config_json(const std::string& value_residual) {
  return Json::Object{{"num_heads", 1},
                      {"key_dim", 2},
                      {"decay_rank", 1},
                      {"learning_rate_rank", 1},
                      {"value_rank", 1},
                      {"gate_rank", 1},
                      {"value_residual", value_residual}};
}

TEST(Rwkv7, RemovesAlongTheRemovalKeyFromTheStateAsItWas) {
  // Columns: r, k, v, log w, kappa, eta (2 each).
  const Harness harness(definition(), config_json("source").dump());
  const std::vector<std::vector<double>> rows = {
      {1, 0, 2, 1, 3, 5, 0, 0, 1, 0, 0.5, 0.5},  // S = ((6, 10), (3, 5))
      // Reads (6, 10) along kappa before the first key channel is halved.
      {1, 1, 0, 0, 0, 0, std::log(0.5), 0, 0.6, 0.8, 0.5, 0.25}};
  for (const auto form : {definition().chunk, definition().step}) {
    Problem problem = harness.make_problem({{2}, {}, 0}, 1, true);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy(rows[r].begin(), rows[r].end(),
                problem.inputs.begin() + static_cast<int64_t>(r) * problem.width);
    }
    const Outcome<float> got =
        form == definition().step ? harness.run_steps(problem) : harness.run(form, problem, 0);
    const std::vector<double> out = {6, 10, 3, 5};
    const std::vector<double> state = {1.2, 2, 1.8, 3};
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(got.out[i], out[i], 1e-5) << i;
      EXPECT_NEAR(got.state[0][0][i], state[i], 1e-5) << i;
    }
  }
}

TEST(Rwkv7, TheFirstLayerHasNoValueGate) {
  for (const bool mixed : {false, true}) {
    const auto config =
        definition().parse_config(config_json(mixed ? "mixed" : "source"), 8, "test");
    ASSERT_TRUE(config.ok());
    const LayerProgram program = definition().layer(**config);
    EXPECT_EQ(program.received_width(), mixed ? 2 : 0);
    EXPECT_EQ(program.handed_on.width(), mixed ? 0 : 2);
    for (const char* name : {"v0", "v1", "v2"}) {
      EXPECT_EQ(std::any_of(program.params.begin(), program.params.end(),
                            [&](const ParamSpec& spec) { return spec.name == name; }),
                mixed)
          << name;
    }
  }
}

TEST(Rwkv7, WithoutAResidualALayerStandsAlone) {
  const auto config = definition().parse_config(config_json("none"), 8, "test");
  ASSERT_TRUE(config.ok());
  const LayerProgram program = definition().layer(**config);
  EXPECT_EQ(program.received_width(), 0);
  EXPECT_EQ(program.handed_on.width(), 0);
}

TEST(Rwkv7, OnlyAMixedLayerNeedsARankOfValues) {
  for (const char* values : {"source", "mixed", "none"}) {
    Json json = config_json(values);
    std::erase_if(*json.as_object(),
                  [](const auto& member) { return member.first == "value_rank"; });
    const auto config = definition().parse_config(json, 8, "test");
    EXPECT_EQ(config.ok(), std::string(values) != "mixed") << values;
  }
}

TEST(Rwkv7, StartsAsPublished) {
  Json json = config_json("mixed");
  json.set("num_layers", 4);
  json.set("layer_index", 1);
  const auto config = definition().parse_config(json, 8, "test");
  ASSERT_TRUE(config.ok());
  const LayerProgram program = definition().layer(**config);
  const auto value = [&](const std::string& name, int64_t index) {
    for (const ParamSpec& spec : program.params) {
      if (spec.name != name) continue;
      const bool formula = spec.init.kind == Init::Kind::kFormula;
      return formula ? spec.init.formula(index, spec.init.arguments) : double{spec.init.scale};
    }
    ADD_FAILURE() << name;
    return 0.0;
  };
  // A head's first and last channel, which are the layer's.
  const std::vector<std::pair<const char*, std::pair<double, double>>> wanted = {
      {"w0", {-8.0, 3.0}}, {"a0", {-0.69, 0.31}}, {"v0", {0.93, 0.53}}, {"k_k", {0.76, 0.66}}};
  for (const auto& [name, ends] : wanted) {
    EXPECT_NEAR(value(name, 0), ends.first, 1e-12) << name;
    EXPECT_NEAR(value(name, 1), ends.second, 1e-12) << name;
  }
  // Channel 4 of 8 of each blend, in the second of four layers.
  const double powers[] = {0.2, 0.9, 0.7, 0.7, 0.9, 0.2};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(value("mix", 8 * i + 4), 1.0 - std::pow(0.5, 0.75 * powers[i]), 1e-12) << i;
    EXPECT_EQ(value("mix", 8 * i), 1.0) << i;
  }
  EXPECT_NEAR(value("norm.weight", 0), std::pow(0.5, 0.7), 1e-6);
  for (const char* zero : {"w1", "a1", "v1", "g1", "out.weight"}) EXPECT_EQ(value(zero, 0), 0.0);
}

}  // namespace
}  // namespace tarn::mixers::rwkv7
