// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "conformance/harness.h"

namespace tarn::mixers::block_sparse_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;

const MixerDef& definition() { return **find_mixer("block_sparse_attention", "test"); }

/// Which of `tokens` tokens each query of each head sees, found by giving one token at a time the
/// value 1: visible[head][query].
std::vector<std::vector<std::set<int64_t>>> visible_tokens(const std::string& config,
                                                           int64_t tokens) {
  const Harness harness(definition(), config);
  const int64_t heads = harness.shape.out_heads;
  const auto form = harness.causal() ? definition().chunk : definition().parallel;
  Problem problem = harness.make_problem({{tokens}, {}, 0}, 1, false);
  std::vector<std::vector<std::set<int64_t>>> visible(
      static_cast<size_t>(heads), std::vector<std::set<int64_t>>(static_cast<size_t>(tokens)));
  for (int64_t key = 0; key < tokens; ++key) {
    for (int64_t r = 0; r < tokens; ++r) {
      // q and k are 0; every head has a value channel of its own.
      double* row = problem.inputs.data() + r * problem.width;
      std::fill_n(row, 2 * heads, 0.0);
      std::fill_n(row + 2 * heads, heads, r == key ? 1.0 : 0.0);
    }
    const Outcome<float> got = harness.run(form, problem, 0);
    for (int64_t r = 0; r < tokens; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        if (got.out[static_cast<size_t>(r * heads + h)] > 0.0f) {
          visible[static_cast<size_t>(h)][static_cast<size_t>(r)].insert(key);
        }
      }
    }
  }
  return visible;
}

std::set<int64_t> blocks_of(const std::set<int64_t>& tokens, int64_t size) {
  std::set<int64_t> blocks;
  for (const int64_t token : tokens) blocks.insert(token / size);
  return blocks;
}

TEST(BlockSparseAttention, SeesWindowAndGlobalBlocks) {
  const auto causal = visible_tokens(R"({"num_heads": 1, "key_dim": 1, "block_size": 2,
      "window_blocks": 2, "global_blocks": 1, "random_blocks": 0})",
                                     10);
  EXPECT_EQ(causal[0][0], (std::set<int64_t>{0}));
  EXPECT_EQ(causal[0][5], (std::set<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(causal[0][8], (std::set<int64_t>{0, 1, 6, 7, 8}));
  const auto both = visible_tokens(R"({"num_heads": 1, "key_dim": 1, "block_size": 2,
      "window_blocks": 3, "global_blocks": 1, "random_blocks": 0, "causal": false})",
                                   11);
  EXPECT_EQ(both[0][1].size(), 11u);
  EXPECT_EQ(both[0][6], (std::set<int64_t>{0, 1, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(both[0][10], (std::set<int64_t>{0, 1, 8, 9, 10}));
}

TEST(BlockSparseAttention, DrawsDistinctBlocksPerHeadAndSeed) {
  const std::string base = R"({"num_heads": 2, "key_dim": 1, "block_size": 2, "window_blocks": 1,
      "global_blocks": 1, "random_blocks": 3, "seed": )";
  const auto first = visible_tokens(base + "1}", 60);
  const auto again = visible_tokens(base + "1}", 40);
  const auto other = visible_tokens(base + "2}", 60);
  std::set<int64_t> drawn;
  for (size_t t = 0; t < 60; ++t) {
    const auto block = static_cast<int64_t>(t / 2);
    std::set<int64_t> blocks = blocks_of(first[0][t], 2);
    // Itself, the global block and three more, as far as there are any.
    EXPECT_EQ(blocks.size(), static_cast<size_t>(std::min<int64_t>(block + 1, 5))) << t;
    EXPECT_TRUE(blocks.contains(0) && blocks.contains(block)) << t;
    EXPECT_LE(*first[0][t].rbegin(), static_cast<int64_t>(t));
    EXPECT_EQ(blocks, blocks_of(first[0][t / 2 * 2], 2)) << t;
    blocks.erase(block);
    drawn.insert(blocks.begin(), blocks.end());
  }
  // What follows has no influence.
  EXPECT_TRUE(std::equal(again[0].begin(), again[0].end(), first[0].begin()));
  EXPECT_GT(drawn.size(), 15u);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(first[0], other[0]);
}

TEST(BlockSparseAttention, EnoughBlocksAreSoftmaxAttention) {
  const MixerDef& softmax = **find_mixer("softmax_attention", "test");
  for (const char* causal : {"true", "false"}) {
    const std::string base =
        R"({"num_heads": 2, "key_dim": 5, "rotary_dim": 2, "causal": )" + std::string(causal);
    const Harness full(softmax, base + "}");
    const Harness sparse(definition(), base + R"(, "block_size": 10, "random_blocks": 16})");
    const Problem problem = full.make_problem({{90, 40}, {}, 1}, 3, false);
    const Outcome<double> want = full.reference(problem);
    EXPECT_LE(
        conformance::relative_error(sparse.run(definition().parallel, problem, 0).out, want.out),
        16.0 * 1.2e-7 * std::sqrt(95.0));
  }
}

TEST(BlockSparseAttention, RefusesALopsidedWindow) {
  const auto json = parse_json(R"({"num_heads": 1, "key_dim": 4, "block_size": 2, "causal": false,
                                   "window_blocks": 2})",
                               "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("window_blocks"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::block_sparse_attention
