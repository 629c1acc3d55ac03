// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/layer_harness.h"

namespace tarn::mixers::linear_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("linear_attention", "test"); }

TEST(LinearAttention, EqualKeysGiveTheRunningMeanOfTheValues) {
  // q = k = 0: elu(0) + 1 = 1 in every channel, so every earlier token weighs the same.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 3, "value_dim": 1})");
  Problem problem = harness.make_problem({{6}, {}, 0}, 1, false);
  for (int64_t r = 0; r < 6; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[0] = row[1] = row[2] = row[3] = row[4] = row[5] = 0.0;
    row[6] = static_cast<double>(r + 1);
  }
  const Outcome<float> got = harness.run(definition().chunk, problem, 0);
  for (int64_t r = 0; r < 6; ++r) {
    // mean of 1 … r + 1, times 3(r + 1) / (3(r + 1) + ε)
    const double mean = 0.5 * static_cast<double>(r + 2);
    EXPECT_NEAR(got.out[r], mean, mean * (1e-6 / 3.0 + 4.0 * 1.2e-7)) << r;
  }
}

TEST(LinearAttention, NegativeKeysStillWeigh) {
  // elu(x) + 1 = e^x > 0 for x < 0: the gradient does not vanish where relu's would.
  const Harness elu(definition(), R"({"num_heads": 1, "key_dim": 1})");
  const Harness relu(definition(), R"({"num_heads": 1, "key_dim": 1, "feature_map": "relu"})");
  for (const auto& [harness, vanishes] : {std::pair{&elu, false}, std::pair{&relu, true}}) {
    Problem problem = harness->make_problem({{1}, {}, 0}, 1, false);
    problem.inputs[0] = problem.inputs[1] = -1.0;
    problem.inputs[2] = 2.0;
    const Outcome<float> got = harness->run(definition().chunk, problem, 0);
    EXPECT_NEAR(got.out[0], vanishes ? 0.0 : 2.0, 2e-5);  // e^-2 / (e^-2 + 1e-6) · 2
    const auto gradient = harness->gradient(problem, {1.0f}, {});
    EXPECT_EQ(gradient.dinputs[2] == 0.0f, vanishes);
  }
}

TEST(LinearAttention, StateSizeIsWhatTheTableSays) {
  const Harness harness(definition(), R"({"num_heads": 8, "key_dim": 32})");
  EXPECT_EQ(harness.state_elements(0, 784), 8 * 32 * 32);
  EXPECT_EQ(harness.state_elements(1, 784), 8 * 32);
}

TEST(LinearAttention, CountsFourFlopsPerStateValueForwardAndTwelveBackward) {
  // 3 heads of 10 features by 5 values.
  const Harness harness(definition(), R"({"num_heads": 3, "key_dim": 4, "value_dim": 5,
                                          "feature_map": "favor", "num_features": 10})");
  const auto flops = [&](OpPass pass) { return definition().flops(*harness.config, pass, 7); };
  EXPECT_EQ(flops(OpPass::kForward), 4.0 * 3 * 10 * 5 * 7);
  EXPECT_EQ(flops(OpPass::kBackward), 12.0 * 3 * 10 * 5 * 7);
  EXPECT_EQ(flops(OpPass::kStep), 4.0 * 3 * 10 * 5);
}

/// A layer with parameters drawn by their names, so that equal names hold equal numbers.
conformance::LayerProblem layer_problem(const conformance::LayerHarness& harness, int64_t tokens) {
  conformance::LayerProblem problem;
  problem.lengths = {tokens};
  problem.positions = {0};
  for (const ParamSpec& spec : harness.params) {
    problem.params.push_back(conformance::draw_parameter(spec, 1));
  }
  for (int64_t i = 0; i < tokens * harness.model_dim; ++i) {
    problem.x.push_back(std::sin(static_cast<double>(i * i)));
  }
  return problem;
}

TEST(LinearAttention, T2rWithTheIdentityIsRelu) {
  const Json t2r = *parse_json(R"({"num_heads": 2, "key_dim": 3, "feature_map": "t2r"})", "config");
  const Json relu =
      *parse_json(R"({"num_heads": 2, "key_dim": 3, "feature_map": "relu"})", "config");
  const conformance::LayerHarness learned(definition(), t2r, 8);
  const conformance::LayerHarness plain(definition(), relu, 8);
  conformance::LayerProblem problem = layer_problem(learned, 9);
  for (size_t p = 0; p < problem.params.size(); ++p) {
    if (learned.params[p].name.starts_with("map_")) problem.params[p] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  }
  const auto got = learned.reference(problem);
  const auto want = plain.reference(layer_problem(plain, 9));
  EXPECT_LE(conformance::relative_error(got.y, want.y), 1e-12);
}

TEST(LinearAttention, HedgehogsWithoutWeightsWeighAllTokensAlike) {
  // φ is constant for W = 0: outputs are running means of the values, in both forms.
  std::vector<std::vector<double>> outputs;
  for (const char* map : {"hedgehog", "hedgehog_apart"}) {
    Json config = *parse_json(R"({"num_heads": 2, "key_dim": 3})", "config");
    config.set("feature_map", map);
    const conformance::LayerHarness harness(definition(), config, 8);
    conformance::LayerProblem problem = layer_problem(harness, 5);
    for (size_t p = 0; p < problem.params.size(); ++p) {
      if (!harness.params[p].name.starts_with("map_")) continue;
      std::fill(problem.params[p].begin(), problem.params[p].end(), 0.0);
    }
    outputs.push_back(harness.reference(problem).y);
    for (size_t p = 0; p < problem.params.size(); ++p) {  // and not alike with others
      for (double& value : problem.params[p]) value += 0.5;
    }
    outputs.push_back(harness.reference(problem).y);
  }
  EXPECT_LE(conformance::relative_error(outputs[0], outputs[2]), 1e-5);  // ε apart
  EXPECT_GE(conformance::relative_error(outputs[1], outputs[3]), 1e-3);
}

TEST(LinearAttention, RefusesAnOddNumberOfRandomFeatures) {
  const auto json = parse_json(
      R"({"num_heads": 1, "key_dim": 4, "feature_map": "favor", "num_features": 5})", "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("num_features"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::linear_attention
