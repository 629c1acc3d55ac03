#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/threads.h"
#include "kernels/state_transition.h"
#include "state_transition_fixture.h"

namespace tarn::kernels::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// All gradients of one case by the kernels; poisoned with NaN before.
struct Gradients : TransitionTensors<float> {
  Gradients(const TransitionCase& c, TransitionInput& input, ThreadPool* pool, int64_t chunk_size)
      : TransitionTensors(c), dout(input.new_out()) {
    Philox random{.seed = 5};
    input.fill(dout, [&] { return random.next_normal(); });
    for (const auto& each : input.state) {
      dfinal.emplace_back(each.size());
      for (float& x : dfinal.back()) x = 0.1f * random.next_normal();
      dinitial.emplace_back(each.size(), kNan);
    }
    StateTransitionProblem problem = input.problem;
    problem.pool = pool;
    problem.chunk_size = chunk_size;
    Arena arena;
    transition_backward(problem, input.const_view(),
                        c.with_state ? pointers(input.state).data() : nullptr, dout.view(),
                        pointers(dfinal).data(), {view(), pointers(dinitial).data()}, arena);
    scratch_bytes = arena.capacity_bytes();
  }
  Rows<float> dout;
  std::vector<std::vector<float>> dfinal, dinitial;
  int64_t scratch_bytes = 0;
};

/// Inputs in double with the loss Σ dout·out + Σ dfinal·S_T by the reference.
struct Loss : TransitionReference {
  Loss(const TransitionCase& c, TransitionInput& input, const Gradients& gradients)
      : TransitionReference(c, input),
        dout(gradients.dout.doubles()),
        dfinal(doubles(gradients.dfinal)) {}
  double operator()() {
    run();
    double sum = 0;
    for (size_t i = 0; i < out.data.size(); ++i) {
      if (!std::isnan(out.data[i])) sum += dout.data[i] * out.data[i];
    }
    for (size_t i = 0; i < dfinal.size(); ++i) {
      for (size_t j = 0; j < dfinal[i].size(); ++j) sum += dfinal[i][j] * final_state[i][j];
    }
    return sum;
  }
  double derivative(double& x) {
    const double original = x;
    const double h = 1e-5 * std::max(1.0, std::abs(x));
    x = original + h;
    const double above = (*this)();
    x = original - h;
    const double below = (*this)();
    x = original;
    return (above - below) / (2 * h);
  }
  Rows<double> dout;
  std::vector<std::vector<double>> dfinal;
};

/// Places of a tensor's elements that belong to a sequence: about `count`, spread.
std::vector<size_t> sample_places(const TransitionInput& input, Rows<float>& rows, int64_t count) {
  std::vector<size_t> all;
  input.for_each_row([&](int64_t row) {
    for (int64_t head = 0; head < rows.heads; ++head) {
      for (int64_t i = 0; i < rows.dim; ++i) {
        all.push_back(static_cast<size_t>(rows.at(row, head) + i - rows.data.data()));
      }
    }
  });
  std::vector<size_t> some;
  const size_t step = all.size() / static_cast<size_t>(count) | 1;
  for (size_t i = 0; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

using Samples = std::map<std::string, std::vector<double>>;

struct GradientCase : TransitionCase {
  int64_t samples = 20;  ///< per tensor
};

std::vector<double> state_samples(const std::vector<std::vector<float>>& states, int64_t count) {
  std::vector<double> some;
  for (const auto& each : states) {
    const size_t step = each.size() / static_cast<size_t>(count) | 1;
    for (size_t i = 0; i < each.size(); i += step) some.push_back(static_cast<double>(each[i]));
  }
  return some;
}

Samples differentiate(const GradientCase& c, TransitionInput& input, Loss& loss) {
  Samples want;
  std::vector<std::vector<size_t>> places;
  input.for_each([&](Rows<float>& rows, const char*) {
    places.push_back(sample_places(input, rows, c.samples));
  });
  size_t tensor = 0;
  loss.for_each([&](Rows<double>& rows, const char* name) {
    for (size_t place : places[tensor]) want[name].push_back(loss.derivative(rows.data[place]));
    ++tensor;
  });
  for (auto& each : loss.state) {
    const size_t step = each.size() / static_cast<size_t>(c.samples) | 1;
    for (size_t i = 0; i < each.size(); i += step)
      want["state"].push_back(loss.derivative(each[i]));
  }
  return want;
}

Samples sample(const GradientCase& c, const TransitionInput& input, Gradients& got) {
  Samples samples;
  got.for_each([&](Rows<float>& rows, const char* name) {
    for (size_t place : sample_places(input, rows, c.samples)) {
      samples[name].push_back(static_cast<double>(rows.data[place]));
    }
  });
  samples["state"] = state_samples(got.dinitial, c.samples);
  return samples;
}

/// Every element of a sequence finite, every other one as it was.
void expect_written_and_finite(const TransitionInput& input, Gradients& got) {
  got.for_each([&](Rows<float>& rows, const char* name) {
    Rows<float> copy = rows;
    input.for_each_row([&](int64_t row) {
      for (int64_t head = 0; head < rows.heads; ++head) {
        for (int64_t i = 0; i < rows.dim; ++i) {
          ASSERT_TRUE(std::isfinite(rows.at(row, head)[i])) << name << " row " << row;
          copy.at(row, head)[i] = kNan;
        }
      }
    });
    for (float x : copy.data) ASSERT_TRUE(std::isnan(x)) << name;
  });
  for (const auto& each : got.dinitial) {
    for (float x : each) ASSERT_TRUE(std::isfinite(x));
  }
}

/// Error relative to the largest gradient of the tensor. The constant covers the chains forward
/// through the state and back, and decays of up to 2 ulp each.
void expect_close(const TransitionInput& input, const Samples& got, const Samples& want) {
  const StateTransitionProblem& p = input.problem;
  const double terms = static_cast<double>(input.longest() + p.key_dim + p.value_dim);
  for (const auto& [name, values] : want) {
    double largest = 0;
    for (double x : values) largest = std::max(largest, std::abs(x));
    const double bound = 32 * kEps * std::sqrt(terms) * std::max(largest, 1e-3);
    ASSERT_EQ(got.at(name).size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(got.at(name)[i], values[i], bound) << "d" << name << " sample " << i;
    }
  }
}

class StateTransitionGradient : public testing::TestWithParam<GradientCase> {};

std::vector<GradientCase> cases() {
  std::vector<GradientCase> all;
  for (Decay decay : kDecays) {
    for (Erase erase : kErases) {
      const auto add = [&](const char* name, const TransitionCase& shape, int64_t samples) {
        GradientCase c{shape, samples};
        c.name = policy_name(decay, erase) + "_" + name;
        c.decay = decay;
        c.erase = erase;
        all.push_back(c);
      };
      add("k1_v3", {.key_dim = 1, .value_dim = 3, .lengths = {1, 2, 3, 0, 20}}, 20);
      add("k3_v1", {.group = 2, .key_dim = 3, .value_dim = 1, .lengths = {1, 2, 3, 63}}, 20);
      add("k7_v5",
          {.key_heads = 2, .group = 3, .key_dim = 7, .value_dim = 5, .lengths = {5, 0, 37}}, 20);
      add("slow_decay",
          {.key_dim = 17,
           .value_dim = 20,
           .lengths = {64, 65},
           .g = {0.0f, -1e-6f, -0.1f},
           .beta = {}},
          12);
      add("k33_v72", {.key_dim = 33, .value_dim = 72, .lengths = {35}, .with_state = false}, 6);
      add("k96_v192", {.key_dim = 96, .value_dim = 192, .lengths = {18}}, 3);
      add("k300_v3", {.key_dim = 300, .value_dim = 3, .lengths = {18}}, 6);
      add("t1000", {.key_dim = 9, .value_dim = 8, .lengths = {1000}}, 12);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, StateTransitionGradient, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(StateTransitionGradient, MatchesDifferencesOfTheReference) {
  const GradientCase& c = GetParam();
  TransitionInput input(c);
  Gradients any(c, input, nullptr, 0);
  Loss loss(c, input, any);
  const Samples want = differentiate(c, input, loss);
  for_each_target([&] {
    for (int64_t chunk_size : {0, 1, 16, 50}) {
      SCOPED_TRACE(testing::Message() << "chunk " << chunk_size);
      Gradients got(c, input, nullptr, chunk_size);
      expect_written_and_finite(input, got);
      expect_close(input, sample(c, input, got), want);
    }
  });
}

TEST_P(StateTransitionGradient, ThreadsDoNotChangeBits) {
  flush_denormals();  // as workers do: products of decays reach them
  const GradientCase& c = GetParam();
  TransitionInput input(c);
  ThreadPool two(2);
  ThreadPool three(3);
  Gradients serial(c, input, nullptr, 0);
  for (ThreadPool* pool : {&two, &three}) {
    Gradients parallel(c, input, pool, 0);
    std::vector<std::vector<float>> rows;
    parallel.for_each([&](Rows<float>& each, const char*) { rows.push_back(each.data); });
    size_t i = 0;
    serial.for_each([&](Rows<float>& each, const char* name) {
      EXPECT_TRUE(same_bits(each.data, rows[i++])) << name;
    });
    EXPECT_EQ(serial.dinitial, parallel.dinitial);
  }
}

TEST(StateTransitionBackward, ManyChunksKeepFewStatesAndTheSameGradients) {
  for (Erase erase : kErases) {
    GradientCase c;
    c.decay = erase == Erase::kRankOne ? Decay::kPerChannel : Decay::kPerToken;
    c.erase = erase;
    c.key_dim = 48;
    c.value_dim = 50;
    c.lengths = {1000, 30};
    c.g = {0.0f, -1e-6f, -0.1f};
    TransitionInput input(c);
    Gradients few(c, input, nullptr, 0);
    Gradients many(c, input, nullptr, 1);
    expect_close(input, sample(c, input, many), sample(c, input, few));
    // The state of every token would be 9.6 MB.
    EXPECT_LT(many.scratch_bytes, 2'000'000);
  }
}

TEST(StateTransitionBackward, ScratchIsSmallBesideInputsAndGradients) {
  GradientCase c;
  c.decay = Decay::kPerToken;
  c.erase = Erase::kDelta;
  c.key_heads = 8;
  c.key_dim = 64;
  c.value_dim = 64;
  c.lengths = {4096};
  TransitionInput input(c);
  const Gradients got(c, input, nullptr, 0);
  const int64_t floats = 4096 * 8 * (4 * 64 + 3 * 64);
  EXPECT_LT(got.scratch_bytes, floats * static_cast<int64_t>(sizeof(float)) / 8);
}

TEST(StateTransitionBackward, AnEmptySequencePassesTheStatesGradientOn) {
  GradientCase c;
  c.decay = Decay::kPerToken;
  c.erase = Erase::kDelta;
  c.key_dim = 5;
  c.value_dim = 6;
  c.lengths = {0, 4, 0};
  TransitionInput input(c);
  Gradients got(c, input, nullptr, 0);
  EXPECT_EQ(got.dinitial[0], got.dfinal[0]);
  EXPECT_EQ(got.dinitial[2], got.dfinal[2]);
}

}  // namespace
}  // namespace tarn::kernels::test
