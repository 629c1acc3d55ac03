#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/threads.h"
#include "kernels/state_transition.h"
#include "state_transition_fixture.h"

namespace tarn::kernels::test {
namespace {

/// Largest error allowed: rounding errors of T updates and of sums over K and the tokens of a chunk
/// add up like a random walk. The decays' own rounding (up to 2 ulp each) is part of the constant.
double bound(const TransitionInput& input, double largest) {
  const double terms = static_cast<double>(input.longest() + input.problem.key_dim);
  return 16 * kEps * std::sqrt(terms) * std::max(largest, 1e-30);
}

void expect_close(const TransitionInput& input, Rows<float>& out,
                  const std::vector<std::vector<float>>& state, TransitionReference& want) {
  double largest = 0;
  input.for_each_row([&](int64_t row) {
    for (int64_t head = 0; head < out.heads; ++head) {
      for (int64_t i = 0; i < out.dim; ++i) {
        largest = std::max(largest, std::abs(want.out.at(row, head)[i]));
      }
    }
  });
  const double out_bound = bound(input, largest);
  input.for_each_row([&](int64_t row) {
    for (int64_t head = 0; head < out.heads; ++head) {
      for (int64_t i = 0; i < out.dim; ++i) {
        ASSERT_NEAR(static_cast<double>(out.at(row, head)[i]), want.out.at(row, head)[i], out_bound)
            << "row " << row << " head " << head << " channel " << i;
      }
    }
  });
  largest = 0;
  for (const auto& each : want.final_state) {
    for (double x : each) largest = std::max(largest, std::abs(x));
  }
  const double state_bound = bound(input, largest);
  for (size_t i = 0; i < state.size(); ++i) {
    for (size_t j = 0; j < state[i].size(); ++j) {
      ASSERT_NEAR(static_cast<double>(state[i][j]), want.final_state[i][j], state_bound)
          << "state " << i << " element " << j;
    }
  }
}

/// What is in no sequence is as it was: NaN.
void expect_padding_untouched(const TransitionInput& input, Rows<float> out) {
  input.for_each_row([&](int64_t row) {
    for (int64_t head = 0; head < out.heads; ++head) {
      std::fill_n(out.at(row, head), out.dim, std::nanf(""));
    }
  });
  for (float x : out.data) ASSERT_TRUE(std::isnan(x));
}

class StateTransition : public testing::TestWithParam<TransitionCase> {};

/// Every pair of policies with every length and width of interest, spread over few cases.
std::vector<TransitionCase> cases() {
  std::vector<TransitionCase> all;
  for (Decay decay : kDecays) {
    for (Erase erase : kErases) {
      const auto add = [&](const char* name, TransitionCase c) {
        c.name = policy_name(decay, erase) + "_" + name;
        c.decay = decay;
        c.erase = erase;
        all.push_back(c);
      };
      add("k1_v3", {.key_dim = 1, .value_dim = 3, .lengths = {1, 2, 3, 0, 63, 64, 65}});
      add("k3_v1", {.group = 2, .key_dim = 3, .value_dim = 1, .lengths = {1, 2, 3, 63, 64, 65}});
      add("k33_v72", {.key_heads = 2,
                      .group = 3,
                      .key_dim = 33,
                      .value_dim = 72,
                      .lengths = {1, 2, 3, 0, 65}});
      add("k72_v33", {.key_dim = 72, .value_dim = 33, .lengths = {64, 63}, .beta = {}});
      add("k96_v192", {.key_dim = 96, .value_dim = 192, .lengths = {35, 3}});
      add("k192_v96", {.key_dim = 192, .value_dim = 96, .lengths = {17}, .with_state = false});
      add("k300_v16", {.key_dim = 300, .value_dim = 16, .lengths = {33}});
      add("k16_v300", {.key_dim = 16, .value_dim = 300, .lengths = {33}});
      add("t1000", {.key_dim = 33, .value_dim = 40, .lengths = {1000}});
      add("t1000_slow_decay",
          {.key_dim = 40, .value_dim = 33, .lengths = {1000}, .g = {0.0f, -1e-6f, -0.1f}});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, StateTransition, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

/// A sequence token by token.
struct Stepped {
  Stepped(TransitionInput& input, ThreadPool* pool) : out(input.new_out()), state(input.state) {
    Arena arena;
    StateTransitionProblem problem = input.problem;
    problem.pool = pool;
    for (int64_t t = 0; t < input.longest(); ++t) {
      std::vector<int64_t> begin;
      std::vector<float*> states;
      for (size_t i = 0; i < input.lengths.size(); ++i) {
        if (t >= input.lengths[i]) continue;
        begin.push_back(input.begin[i] + t);
        states.push_back(state[i].data());
      }
      const std::vector<int64_t> length(begin.size(), 1);
      problem.sequences = {static_cast<int64_t>(begin.size()), begin.data(), length.data()};
      transition_step(problem, input.const_view(), states.data(), out.view(), arena);
    }
  }
  Rows<float> out;
  std::vector<std::vector<float>> state;
};

TEST_P(StateTransition, StepsMatchTheReference) {
  TransitionInput input(GetParam());
  TransitionReference want(GetParam(), input);
  want.run();
  for_each_target([&] {
    const Stepped got(input, nullptr);
    Rows<float> out = got.out;
    expect_close(input, out, got.state, want);
    expect_padding_untouched(input, out);
  });
}

/// Whole sequences in chunks.
struct Chunked {
  Chunked(TransitionInput& input, int64_t chunk_size, ThreadPool* pool)
      : out(input.new_out()), state(input.state) {
    Arena arena;
    StateTransitionProblem problem = input.problem;
    problem.pool = pool;
    problem.chunk_size = chunk_size;
    transition_forward(problem, input.const_view(), pointers(state).data(), out.view(), arena);
  }
  Rows<float> out;
  std::vector<std::vector<float>> state;
};

TEST_P(StateTransition, ChunksMatchTheReference) {
  TransitionInput input(GetParam());
  TransitionReference want(GetParam(), input);
  want.run();
  for_each_target([&] {
    for (int64_t chunk_size : {0, 1, 16, 50}) {
      SCOPED_TRACE(testing::Message() << "chunk " << chunk_size);
      const Chunked got(input, chunk_size, nullptr);
      Rows<float> out = got.out;
      expect_close(input, out, got.state, want);
      expect_padding_untouched(input, out);
    }
  });
}

TEST_P(StateTransition, ThreadsDoNotChangeBits) {
  flush_denormals();  // as workers do: products of decays reach them
  TransitionInput input(GetParam());
  ThreadPool two(2);
  ThreadPool three(3);
  const Chunked serial(input, 0, nullptr);
  for (ThreadPool* pool : {&two, &three}) {
    const Chunked parallel(input, 0, pool);
    EXPECT_TRUE(same_bits(serial.out.data, parallel.out.data));
    EXPECT_EQ(serial.state, parallel.state);
  }
}

TEST(StateTransitionStep, ThreadsAndBatchMatesDoNotChangeBits) {
  for (Erase erase : kErases) {
    const TransitionCase c{.decay = Decay::kPerChannel,
                           .erase = erase,
                           .key_heads = 4,
                           .key_dim = 64,
                           .value_dim = 72,
                           .lengths = {3, 3, 3, 3, 3, 3, 3, 3}};
    TransitionInput input(c);
    ThreadPool three(3);
    for_each_target([&] {
      const Stepped serial(input, nullptr);
      const Stepped parallel(input, &three);
      EXPECT_TRUE(same_bits(serial.out.data, parallel.out.data));
      EXPECT_EQ(serial.state, parallel.state);
      // One sequence alone.
      auto state = input.state[5];
      Rows<float> out = input.new_out();
      Arena arena;
      StateTransitionProblem problem = input.problem;
      float* pointer = state.data();
      const int64_t one = 1;
      problem.sequences.count = 1;
      problem.sequences.length = &one;
      for (int64_t row = input.begin[5]; row < input.begin[5] + 3; ++row) {
        problem.sequences.begin = &row;
        transition_step(problem, input.const_view(), &pointer, out.view(), arena);
      }
      EXPECT_EQ(state, serial.state[5]);
    });
  }
}

}  // namespace
}  // namespace tarn::kernels::test
