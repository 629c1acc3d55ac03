#include "kernels/short_convolution.h"

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::dense;
using testing::for_each_target;
using testing::kEps;
using testing::TestRows;

/// Sequences of several lengths, empty and shorter than the filter too, with gaps between them.
struct Case {
  Case(int64_t channel_count, int64_t taps, bool with_bias)
      : channels(channel_count),
        width(taps),
        weight(dense(channels, width, 1)),
        bias(with_bias ? dense(1, channels, 2) : std::vector<float>()),
        x(TestRows::uniform(60, channels, 3)),
        dy(TestRows::uniform(60, channels, 4)) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      state.push_back(dense(width - 1, channels, 10 + i));
      dfinal.push_back(dense(width - 1, channels, 20 + i));
    }
  }
  ConvolutionProblem problem(ThreadPool* pool = nullptr) const {
    ConvolutionProblem result;
    result.sequences = {static_cast<int64_t>(lengths.size()), begins.data(), lengths.data()};
    result.channels = channels;
    result.width = width;
    result.weight = weight.data();
    result.bias = bias.empty() ? nullptr : bias.data();
    result.pool = pool;
    return result;
  }
  Heads<const float> rows(const TestRows& from) const { return {from.data(), from.stride(), 0}; }

  int64_t channels;
  int64_t width;
  std::vector<int64_t> begins = {1, 30, 33, 40};
  std::vector<int64_t> lengths = {27, 2, 0, 19};
  std::vector<float> weight, bias;
  TestRows x, dy;
  std::vector<std::vector<float>> state, dfinal;
};

template <class T>
std::vector<T*> pointers(std::vector<std::vector<std::remove_const_t<T>>>& arrays) {
  std::vector<T*> result;
  for (auto& array : arrays) result.push_back(array.data());
  return result;
}

struct Result {
  TestRows y;
  std::vector<std::vector<float>> state;
};

Result run(const Case& c, bool with_state, ThreadPool* pool = nullptr) {
  Result result{TestRows(60, c.channels), c.state};
  auto states = pointers<float>(result.state);
  Arena arena;
  convolution_forward(c.problem(pool), c.rows(c.x), with_state ? states.data() : nullptr,
                      {result.y.data(), result.y.stride(), 0}, arena);
  return result;
}

/// The loss Σ y·dy + Σ final·dfinal in double, with inputs that may be moved.
struct Exact {
  explicit Exact(const Case& c)
      : problem(c),
        weight(c.weight.begin(), c.weight.end()),
        bias(c.bias.begin(), c.bias.end()),
        x(c.x.data(), c.x.data() + 59 * c.x.stride() + c.channels) {
    for (const auto& s : c.state) state.emplace_back(s.begin(), s.end());
  }
  double loss() {
    const int64_t stride = problem.x.stride();
    std::vector<double> y(x.size(), 0.0);
    std::vector<std::vector<double>> final_state = state;
    auto states = pointers<double>(final_state);
    reference::convolution(problem.problem(), weight.data(), bias.empty() ? nullptr : bias.data(),
                           {x.data(), stride, 0}, states.data(), {y.data(), stride, 0});
    double sum = 0.0;
    for (size_t i = 0; i < problem.lengths.size(); ++i) {
      for (int64_t t = 0; t < problem.lengths[i]; ++t) {
        const int64_t row = problem.begins[i] + t;
        for (int64_t c = 0; c < problem.channels; ++c) {
          sum += y[static_cast<size_t>(row * stride + c)] * problem.dy.row(row)[c];
        }
      }
      for (size_t e = 0; e < final_state[i].size(); ++e) {
        sum += final_state[i][e] * static_cast<double>(problem.dfinal[i][e]);
      }
    }
    return sum;
  }
  double slope(double* value) {
    const double saved = *value;
    *value = saved + 1e-6;
    const double above = loss();
    *value = saved - 1e-6;
    const double below = loss();
    *value = saved;
    return (above - below) / 2e-6;
  }

  const Case& problem;
  std::vector<double> weight, bias, x;
  std::vector<std::vector<double>> state;
};

TEST(ShortConvolution, MatchesTheDefinitionForAnyShape) {
  for_each_target([&] {
    for (const int64_t channels : {1, 7, 16, 33, 70}) {
      for (const int64_t width : {1, 2, 4, 6}) {
        for (const bool with_state : {false, true}) {
          const Case c(channels, width, channels % 2 == 1);
          const Result got = run(c, with_state);
          EXPECT_TRUE(got.y.padding_is_intact());
          Exact exact(c);
          std::vector<double> y(exact.x.size(), std::nan(""));
          auto states = pointers<double>(exact.state);
          const std::vector<double> bias = exact.bias;
          reference::convolution(c.problem(), exact.weight.data(),
                                 bias.empty() ? nullptr : bias.data(),
                                 {exact.x.data(), c.x.stride(), 0},
                                 with_state ? states.data() : nullptr, {y.data(), c.x.stride(), 0});
          for (int64_t r = 0; r < 60; ++r) {
            for (int64_t k = 0; k < channels; ++k) {
              const double want = y[static_cast<size_t>(r * c.x.stride() + k)];
              const float value = got.y.row(r)[k];
              if (std::isnan(want)) {
                EXPECT_TRUE(std::isnan(value)) << "row " << r << " belongs to nobody";
              } else {
                // W products of numbers up to 1, and the gate's own error.
                EXPECT_NEAR(value, want, 4.0 * kEps * static_cast<double>(width + 2));
              }
            }
          }
          for (size_t i = 0; with_state && i < c.lengths.size(); ++i) {
            for (size_t e = 0; e < got.state[i].size(); ++e) {
              EXPECT_EQ(got.state[i][e], static_cast<float>(exact.state[i][e]));
            }
          }
        }
      }
    }
  });
}

TEST(ShortConvolution, PiecesAndThreadsHaveTheSameBits) {
  const Case c(70, 4, true);
  const Result whole = run(c, true);
  for (const int threads : {2, 3}) {
    ThreadPool pool(threads);
    const Result shared = run(c, true, &pool);
    for (const int64_t row : {1, 20, 31, 58}) EXPECT_TRUE(shared.y.same_bits(row, whole.y, row));
    EXPECT_EQ(shared.state, whole.state);
  }
  Case piece = c;
  for (int64_t t = 0; t < 19; ++t) {  // the last sequence token by token
    piece.begins = {40 + t};
    piece.lengths = {1};
    piece.state = {t == 0 ? c.state[3] : piece.state[0]};
    const Result one = run(piece, true);
    EXPECT_TRUE(one.y.same_bits(40 + t, whole.y, 40 + t)) << t;
    piece.state = one.state;
  }
  EXPECT_EQ(piece.state[0], whole.state[3]);
}

struct Gradients {
  TestRows dx;
  std::vector<float> dweight, dbias;  ///< added to halves
  std::vector<std::vector<float>> dinitial;
};

Gradients gradients_of(Case c, ThreadPool* pool = nullptr) {
  Gradients result{TestRows(60, c.channels), std::vector<float>(c.weight.size(), 0.5f),
                   std::vector<float>(c.bias.size(), 0.5f), c.state};
  const auto initial = pointers<const float>(c.state);
  const auto dfinal = pointers<const float>(c.dfinal);
  const auto targets = pointers<float>(result.dinitial);
  ConvolutionGradients gradients;
  gradients.dx = {result.dx.data(), result.dx.stride(), 0};
  gradients.dweight = result.dweight.data();
  gradients.dbias = result.dbias.data();
  gradients.dinitial = targets.data();
  Arena arena;
  convolution_backward(c.problem(pool), c.rows(c.x), initial.data(), c.rows(c.dy), dfinal.data(),
                       gradients, arena);
  return result;
}

TEST(ShortConvolution, GradientsMatchDifferences) {
  for_each_target([&] {
    for (const int64_t channels : {1, 35}) {
      for (const int64_t width : {1, 4}) {
        const Case c(channels, width, true);
        const Gradients got = gradients_of(c);
        EXPECT_TRUE(got.dx.padding_is_intact());
        Exact exact(c);
        const double limit = 64.0 * kEps + 1e-7;  // 48 tokens at most in a sum of numbers near 1
        for (size_t e = 0; e < got.dweight.size(); ++e) {
          EXPECT_NEAR(got.dweight[e], 0.5 + exact.slope(&exact.weight[e]), limit) << "weight " << e;
        }
        for (size_t e = 0; e < got.dbias.size(); ++e) {
          EXPECT_NEAR(got.dbias[e], 0.5 + exact.slope(&exact.bias[e]), limit) << "bias " << e;
        }
        for (size_t i = 0; i < c.lengths.size(); ++i) {
          for (int64_t t = 0; t < c.lengths[i]; ++t) {
            const int64_t row = c.begins[i] + t;
            for (int64_t k = 0; k < channels; k += 8) {
              double* value = &exact.x[static_cast<size_t>(row * c.x.stride() + k)];
              EXPECT_NEAR(got.dx.row(row)[k], exact.slope(value), limit) << row << ", " << k;
            }
          }
          for (size_t e = 0; e < got.dinitial[i].size(); ++e) {
            EXPECT_NEAR(got.dinitial[i][e], exact.slope(&exact.state[i][e]), limit) << "initial";
          }
        }
      }
    }
  });
}

TEST(ShortConvolution, GradientsOfManyChannelsHaveTheSameBitsForAnyThreads) {
  const Case c(1100, 4, true);
  const Gradients whole = gradients_of(c);
  for (const int threads : {2, 5}) {
    ThreadPool pool(threads);
    const Gradients shared = gradients_of(c, &pool);
    for (int64_t row = 0; row < 60; ++row) EXPECT_TRUE(shared.dx.same_bits(row, whole.dx, row));
    EXPECT_EQ(shared.dweight, whole.dweight);
    EXPECT_EQ(shared.dbias, whole.dbias);
    EXPECT_EQ(shared.dinitial, whole.dinitial);
  }
}

}  // namespace
}  // namespace tarn::kernels
