// Properties that are this mechanism's own; the rest is in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "conformance/harness.h"
#include "mixers/lsh_attention/lsh_attention.h"

namespace tarn::mixers::lsh_attention {
namespace {

using conformance::Harness;
using conformance::Outcome;
using conformance::Problem;
using conformance::same_bits;

const MixerDef& definition() { return **find_mixer("lsh_attention", "test"); }

/// A problem whose queries in one dimension are the given numbers, and token t has the value 2^t.
Problem line(const Harness& harness, const std::vector<double>& queries) {
  const auto tokens = static_cast<int64_t>(queries.size());
  Problem problem = harness.make_problem({{tokens}, {}, 0}, 1, true);
  for (int64_t r = 0; r < tokens; ++r) {
    double* row = problem.inputs.data() + r * problem.width;
    row[0] = queries[static_cast<size_t>(r)];
    row[1] = static_cast<double>(int64_t{1} << r);
  }
  return problem;
}

TEST(LshAttention, SeesTheLatestEarlierTokensOfItsBucket) {
  // In one dimension with two buckets the sign is the bucket; scale 0 makes weights equal.
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 1, "num_buckets": 2,
                                          "chunk": 2, "scale": 0.0})");
  const Problem problem = line(harness, {1, 2, -1, 0.5, 3, -2, 1});
  // 0 and 2 are the first of their buckets: themselves. 1: {0}, 3: {0, 1}, 4: {1, 3}, 5: {2},
  // 6: {3, 4}.
  const std::vector<double> want = {1, 1, 4, 1.5, 5, 4, 12};
  for (const Outcome<float>& got :
       {harness.run(definition().chunk, problem, 0), harness.run_steps(problem)}) {
    for (size_t r = 0; r < want.size(); ++r) {
      EXPECT_NEAR(got.out[r], want[r], want[r] * 8.0 * 1.2e-7) << r;
    }
    const std::vector<float>& bucket = got.state[2][0];
    EXPECT_EQ(bucket[0], bucket[1]);
    EXPECT_EQ(bucket[2], bucket[5]);
    EXPECT_NE(bucket[0], bucket[2]);
  }
}

TEST(LshAttention, RoundsAreWeightedByTheirSums) {
  // Every round finds the same tokens here: any number of rounds gives what one gives.
  const Harness one(definition(),
                    R"({"num_heads": 1, "key_dim": 1, "num_buckets": 2, "chunk": 3})");
  const Harness many(definition(), R"({"num_heads": 1, "key_dim": 1, "num_buckets": 2, "chunk": 3,
                                       "rounds": 5})");
  const std::vector<double> queries = {1, 2, -1, 0.5, 3, -2, 1};
  const Outcome<double> want = one.reference(line(one, queries));
  const Outcome<float> got = many.run(definition().chunk, line(many, queries), 0);
  EXPECT_LE(conformance::relative_error(got.out, want.out), 32.0 * 1.2e-7);
  // Scores are scale·q_t·k_j with k = ±1, so weights within a bucket are equal: {0, 1} for 3.
  EXPECT_NEAR(want.out[3], 1.5, 1e-12);
}

TEST(LshAttention, BucketIsTheLargestSignedProjection) {
  const Harness harness(definition(), R"({"num_heads": 1, "key_dim": 3, "num_buckets": 140,
                                          "chunk": 1, "rounds": 2, "seed": 4})");
  const auto& config = static_cast<const Config&>(*harness.config);
  Philox rng{17, 0, 0};
  for (int trial = 0; trial < 200; ++trial) {
    float x[3];
    for (float& value : x) value = rng.next_normal();
    for (int64_t round = 0; round < 2; ++round) {
      std::vector<double> projections;
      for (int64_t b = 0; b < 140; ++b) {
        double sum = 0;
        for (int64_t i = 0; i < 3; ++i) {
          sum += x[i] * static_cast<double>(
                            config.rotations[static_cast<size_t>((round * 3 + i) * 70 + b % 70)]);
        }
        projections.push_back(b < 70 ? sum : -sum);
      }
      const auto largest = std::max_element(projections.begin(), projections.end());
      int32_t bucket[2];
      const float both[6] = {x[0], x[1], x[2], -x[0], -x[1], -x[2]};
      buckets_of(config, round, 2, {both, 3}, bucket);
      EXPECT_EQ(bucket[0], largest - projections.begin());
      EXPECT_EQ(bucket[1], (bucket[0] + 70) % 140);
    }
  }
}

TEST(LshAttention, SequencesOfOtherGroupsChangeNoBit) {
  // 500 + 600 rows are more than a group holds, 600 + 3 + 2 are not, and 1,200 are a group alone.
  const Harness harness(definition(), R"({"num_heads": 2, "key_dim": 3, "value_dim": 2, "rounds": 2,
                                          "num_buckets": 6, "chunk": 5})");
  const Problem all = harness.make_problem({{500, 600, 3, 2, 1200}, {7, 0, 4, 0, 9}, 0}, 5, true);
  Philox rng{8, 0, 0};
  const auto draw = [&](size_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = rng.next_normal();
    return values;
  };
  const std::vector<float> dout = draw(static_cast<size_t>(all.rows * harness.out_width()));
  const Outcome<float> got = harness.run(definition().chunk, all, 0);
  conformance::StateValues<float> dfinal = got.state;
  for (auto& tensor : dfinal) {
    for (auto& values : tensor) values = draw(values.size());
  }
  const conformance::Gradients gradients = harness.gradient(all, dout, dfinal);
  for (size_t i = 0; i < all.begins.size(); ++i) {
    SCOPED_TRACE(i);
    Problem one = all;
    one.begins = {all.begins[i]};
    one.layout.lengths = {all.layout.lengths[i]};
    one.layout.prefixes = {all.layout.prefixes[i]};
    for (auto& tensor : one.state) tensor = {tensor[i]};
    conformance::StateValues<float> own_dfinal = dfinal;
    for (auto& tensor : own_dfinal) tensor = {tensor[i]};
    const auto own_rows = [&](const std::vector<float>& values, int64_t width) {
      const auto first = values.begin() + all.begins[i] * width;
      return std::vector<float>(first, first + all.layout.lengths[i] * width);
    };
    const Outcome<float> want = harness.run(definition().chunk, one, 0);
    const conformance::Gradients own = harness.gradient(one, dout, own_dfinal);
    EXPECT_EQ(own_rows(got.out, harness.out_width()), own_rows(want.out, harness.out_width()));
    EXPECT_TRUE(
        same_bits(own_rows(gradients.dinputs, all.width), own_rows(own.dinputs, all.width)));
    for (size_t j = 0; j < want.state.size(); ++j) {
      EXPECT_TRUE(same_bits(got.state[j][i], want.state[j][0]));
      EXPECT_TRUE(same_bits(gradients.dinitial[j][i], own.dinitial[j][0]));
    }
  }
}

TEST(LshAttention, RefusesAnOddNumberOfBuckets) {
  const auto json =
      parse_json(R"({"num_heads": 1, "key_dim": 4, "num_buckets": 3, "chunk": 2})", "config");
  ASSERT_TRUE(json.ok());
  const auto parsed = definition().parse_config(*json, 16, "layers[0].mixer");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().to_string().find("num_buckets"), std::string::npos);
}

}  // namespace
}  // namespace tarn::mixers::lsh_attention
