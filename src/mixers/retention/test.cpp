// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::retention {
namespace {

using conformance::Harness;
using conformance::Outcome;

const MixerDef& definition() { return **find_mixer("retention", "test"); }

TEST(Retention, ConstantRowsGiveAGeometricSum) {
  const Harness harness(definition(), R"({"num_heads": 2, "key_dim": 1, "rotary_base": 0})");
  const Outcome<float> got = harness.run_rows(std::vector(40, std::vector<double>(6, 1.0)));
  for (int head = 0; head < 2; ++head) {
    const double decay = 1.0 - std::exp2(-5.0 - head);
    for (int t = 0; t < 40; ++t) {
      const double want = (1.0 - std::pow(decay, t + 1)) / (1.0 - decay);
      EXPECT_NEAR(got.out[static_cast<size_t>(2 * t + head)], want, 1e-5 * want)
          << head << ", " << t;
    }
  }
}

TEST(Retention, RefusesOddKeysWithPositions) {
  const auto json = parse_json(R"({"num_heads": 1, "key_dim": 5})", "config");
  const auto parsed = definition().parse_config(*json, 16, "mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("even"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::retention
