// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::gated_delta_rule {
namespace {

using conformance::Harness;
using conformance::Outcome;

const MixerDef& definition() { return **find_mixer("gated_delta_rule", "test"); }

TEST(GatedDeltaRule, DecaysBeforeItErases) {
  // Columns: q, k, v, g, beta of one head and one channel.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 1, "value_dim": 1})");
  const std::vector<std::vector<double>> rows = {{1.0, 1.0, 8.0, 0.0, 1.0},
                                                 {1.0, 1.0, 0.0, std::log(0.5), 0.25},
                                                 {1.0, 1.0, 9.0, -500.0, 0.0}};
  const Outcome<float> got = harness.run_rows(rows);
  EXPECT_NEAR(got.out[0], 8.0, 1e-6);
  EXPECT_NEAR(got.out[1], 3.0, 1e-6);  // 8 halved to 4, a quarter of it erased
  EXPECT_EQ(got.out[2], 0.0f);         // all forgotten, nothing written
}

TEST(GatedDeltaRule, ValueHeadsShareTheKeysOfTheirGroup) {
  const Harness harness(definition(),
                        R"({"num_heads": 4, "num_key_heads": 2, "key_dim": 1, "value_dim": 1})");
  // q (2), k (2), v (4), g (4), beta (4): only key head 1 is read.
  const Outcome<float> got =
      harness.run_rows({{0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 0, 0, 0, 0, 1.0, 1.0, 1.0, 1.0}});
  EXPECT_EQ(std::vector<float>(got.out.begin(), got.out.begin() + 4),
            (std::vector<float>{0.0f, 0.0f, 3.0f, 4.0f}));
}

}  // namespace
}  // namespace tarn::mixers::gated_delta_rule
