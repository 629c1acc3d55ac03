// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/harness.h"

namespace tarn::mixers::lightning_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;

const MixerDef& definition() { return **find_mixer("lightning_attention", "test"); }

TEST(LightningAttention, DeeperLayersForgetMoreSlowly) {
  // A value written once, read later: o_t = e^(-slope t).
  std::vector<std::vector<double>> rows(9, {1.0, 0.0, 0.0});
  rows[0] = {1.0, 1.0, 1.0};
  for (int layer = 0; layer < 4; ++layer) {
    const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 1, "num_layers": 4,
                                            "layer_index": )" +
                                            std::to_string(layer) + "}");
    const double slope = std::exp2(-8.0) * (1.0 - layer / (3.0 + 1e-5) + 1e-5);
    const Outcome<float> got = harness.run_rows(rows);
    for (int t = 0; t < 9; ++t) {
      EXPECT_NEAR(got.out[static_cast<size_t>(t)], std::exp(-slope * t), 1e-6)
          << layer << ", " << t;
    }
  }
}

}  // namespace
}  // namespace tarn::mixers::lightning_attention
