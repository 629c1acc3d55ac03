// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "conformance/harness.h"

namespace tarn::mixers::_template {
namespace {

constexpr double kEps = std::numeric_limits<float>::epsilon();

const MixerDef& definition() { return **find_mixer("_template", "test"); }

TEST(_template, ConstantValuesAreApproachedAtTheRateOfTheDecay) {
  // v = 1 and q = 1 give o_t = 1 − a^{t+1}.
  const conformance::Harness harness(definition(),
                                     R"({"num_heads": 1, "value_dim": 1, "decay": 0.75})");
  conformance::Problem problem = harness.make_problem({{12}, {}, 0}, 1, false);
  for (int64_t t = 0; t < 12; ++t) {
    problem.inputs[static_cast<size_t>(t * problem.width)] = 1.0;
    problem.inputs[static_cast<size_t>(t * problem.width + 1)] = 1.0;
  }
  const auto got = harness.run(definition().chunk, problem, 0);
  for (int64_t t = 0; t < 12; ++t) {
    const double want = 1.0 - std::pow(0.75, static_cast<double>(t + 1));
    EXPECT_NEAR(got.out[static_cast<size_t>(t)], want, 4.0 * kEps) << "token " << t;
  }
}

TEST(_template, DecayOfOneIsRefused) {
  const auto json = parse_json(R"({"num_heads": 1, "value_dim": 4, "decay": 1.0})", "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("decay"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::_template
