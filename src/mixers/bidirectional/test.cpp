// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "conformance/layer_harness.h"

namespace tarn::mixers::bidirectional {
namespace {

using conformance::LayerHarness;
using conformance::LayerProblem;

constexpr int64_t kModelDim = 6;

std::vector<double> draw(int64_t size, uint64_t seed) {
  Philox rng{seed, 0, 0};
  std::vector<double> values(static_cast<size_t>(size));
  for (double& value : values) value = rng.next_normal();
  return values;
}

std::vector<double> reversed_rows(const std::vector<double>& rows) {
  std::vector<double> result;
  for (size_t end = rows.size(); end > 0; end -= kModelDim) {
    result.insert(result.end(), rows.begin() + static_cast<int64_t>(end) - kModelDim,
                  rows.begin() + static_cast<int64_t>(end));
  }
  return result;
}

/// The inner layer alone on one sequence; its parameters are in.weight, in.bias, out.weight, out.bias.
std::vector<double> inner_output(const LayerHarness& inner, const std::vector<double>& x,
                                 const std::vector<std::vector<double>>& params) {
  LayerProblem problem;
  problem.lengths = {static_cast<int64_t>(x.size()) / kModelDim};
  problem.positions = {0};
  problem.params = params;
  problem.x = x;
  return inner.reference(problem).y;
}

TEST(Bidirectional, IsTheSumOfTheInnerLayerFromBothEndsOfEachSequence) {
  const Json inner_json = Json::Object{{"num_heads", 2}, {"key_dim", 3}, {"value_dim", 2}};
  Json named = inner_json;
  named.set("name", "linear_attention");
  const LayerHarness inner(**find_mixer("linear_attention", "test"), inner_json, kModelDim);
  const LayerHarness both(**find_mixer("bidirectional", "test"), Json::Object{{"mixer", named}},
                          kModelDim);
  std::vector<std::vector<double>> ahead, back;
  for (const ParamSpec& spec : inner.params) {
    ahead.push_back(draw(LayerHarness::elements(spec.shape), 2 * ahead.size()));
    back.push_back(draw(LayerHarness::elements(spec.shape), 2 * back.size() + 1));
  }
  LayerProblem problem;
  problem.params = {ahead[0], ahead[1], back[0], back[1], {}, {}};
  constexpr size_t kWidth = 4;  // of the operator's output
  for (size_t row = 0; row < kModelDim; ++row) {
    for (const auto* weight : {&ahead[2], &back[2]}) {
      const auto begin = weight->begin() + static_cast<int64_t>(row * kWidth);
      problem.params[4].insert(problem.params[4].end(), begin, begin + kWidth);
    }
    problem.params[5].push_back(ahead[3][row] + back[3][row]);
  }
  std::vector<double> want;
  for (const int64_t length : {5, 1, 9}) {
    const std::vector<double> x = draw(length * kModelDim, 100 + static_cast<uint64_t>(length));
    problem.lengths.push_back(length);
    problem.positions.push_back(0);
    problem.x.insert(problem.x.end(), x.begin(), x.end());
    const std::vector<double> one = inner_output(inner, x, ahead);
    const std::vector<double> other = reversed_rows(inner_output(inner, reversed_rows(x), back));
    for (size_t i = 0; i < one.size(); ++i) want.push_back(one[i] + other[i]);
  }
  const std::vector<double> got = both.reference(problem).y;
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12) << i;
}

TEST(Bidirectional, RefusesWhatCannotBeReadFromBothEnds) {
  const struct {
    const char* inner;
    const char* message;
  } cases[] = {
      {R"({"name": "softmax_attention", "num_heads": 1, "key_dim": 4, "causal": false})",
       "is not causal"},
      {R"({"name": "channel_mix", "hidden_dim": 4})", "has no operator"},
      {R"({"name": "no_such"})", "unknown mixer"},
      {R"({"num_heads": 1})", "must be an object with a string \"name\""},
      {R"({"name": "linear_attention", "num_heads": 0, "key_dim": 4})", "mixer.num_heads: must be an integer from 1"},
      {R"({"name": "bidirectional", "mixer": {"name": "lstm", "hidden_dim": 3}})",
       "is not causal"}};
  const MixerDef& def = **find_mixer("bidirectional", "test");
  for (const auto& [inner, message] : cases) {
    const Json config = Json::Object{{"mixer", *parse_json(inner, "test")}};
    const auto parsed = def.parse_config(config, 8, "config");
    ASSERT_FALSE(parsed.ok()) << inner;
    EXPECT_NE(parsed.error().to_string().find(message), std::string::npos)
        << parsed.error().to_string();
  }
}

}  // namespace
}  // namespace tarn::mixers::bidirectional
