// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include "conformance/layer_harness.h"

namespace tarn::mixers::channel_mix {
namespace {

using conformance::LayerHarness;
using conformance::LayerOutcome;
using conformance::LayerProblem;

TEST(ChannelMix, BlendsWithTheRowBeforeAndSquares) {
  const LayerHarness harness(**find_mixer("channel_mix", "test"), Json::Object{{"hidden_dim", 2}},
                             2);
  LayerProblem problem;
  problem.lengths = {2};
  problem.positions = {0};
  problem.params = {{0.5, 0.0}, {1.0, 1.0, -1.0, 0.0}, {1.0, 2.0, 3.0, 4.0}};  // m, K, V
  problem.x = {2.0, 1.0, -4.0, 0.0};
  problem.state = {{{0.0, 0.0}}};
  // Blends (1, 1) and (-1, 0), hidden (2, -1) and (-1, 1).
  const std::vector<float> want = {4.0f, 12.0f, 2.0f, 4.0f};
  const LayerOutcome<float> got = harness.run(problem, Form::kAuto);
  EXPECT_EQ(got.y, want);
  EXPECT_EQ(got.state[0][0], (std::vector<float>{-4.0f, 0.0f}));

  problem.lengths = {1};
  problem.x = {-4.0, 0.0};
  problem.state = {{{2.0, 1.0}}};
  EXPECT_EQ(harness.run(problem, Form::kStep).y, (std::vector<float>{2.0f, 4.0f}));
}

}  // namespace
}  // namespace tarn::mixers::channel_mix
