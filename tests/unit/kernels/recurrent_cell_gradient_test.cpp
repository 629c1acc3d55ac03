#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/threads.h"
#include "kernels/recurrent_cell.h"
#include "recurrent_cell_fixture.h"

namespace tarn::kernels::test {
namespace {

class RecurrentCellGradient : public testing::TestWithParam<CellCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, RecurrentCellGradient, testing::ValuesIn(cell_cases()),
                         [](const auto& instance) { return instance.param.name; });

/// All gradients by the kernels, the parameters' from `start` on.
struct CellGradients {
  CellGradients(const CellCase& c, ThreadPool* pool, float start = 0)
      : t(c),
        dout(t.out_rows()),
        dgates(t.num_rows, 1, t.problem.gates_dim()),
        dweight(t.weight.size(), start),
        dbias(t.bias.size(), start) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    t.problem.pool = pool;
    Philox random{.seed = 23};
    t.fill(dout, random, 1.0f);
    for (Vectors* d : {&dh, &dc}) {
      *d = t.h;
      for (auto& each : *d) {
        for (float& x : each) x = random.next_normal();
      }
    }
    for (Vectors* d : {&dh0, &dc0}) {
      d->assign(t.h.size(), std::vector<float>(t.c.hidden_dim, nan));
    }
    Rows<float> out = t.out_rows();
    Rows<float> saved(t.num_rows, 1, t.problem.saved_dim());
    Vectors final_h = t.h, final_c = t.c_state;
    CellPointers state(final_h, final_c), initial(t.h, t.c_state), at_end(dh, dc);
    CellPointers at_start(dh0, dc0);
    Arena arena;
    const PackedOperand weight = pack_recurrent(t.problem, DType::kF32, t.weight.data(), arena);
    recurrent_forward(t.problem, view(*t.gates), weight, t.bias.data(),
                      c.with_state ? state.get() : RecurrentState<float>{}, view(out), view(saved),
                      arena);
    recurrent_backward(t.problem, DType::kF32, t.weight.data(), view(out), view(saved),
                       c.with_state ? initial.get_const() : RecurrentState<const float>{},
                       view(dout), at_end.get_const(),
                       {view(dgates), dweight.data(), dbias.data(), at_start.get()}, arena);
  }
  CellTensors t;
  Rows<float> dout, dgates;
  std::vector<float> dweight, dbias;
  Vectors dh, dc, dh0, dc0;
};

/// Σ dout·out + Σ dh·h_T + Σ dc·c_T by the reference.
struct CellLoss {
  explicit CellLoss(CellGradients& g)
      : reference(g.t), dout(g.dout.doubles()), dh(doubles(g.dh)), dc(doubles(g.dc)) {}
  double operator()() {
    reference.run();
    double sum = 0;
    for (size_t i = 0; i < dout.data.size(); ++i) {
      if (!std::isnan(dout.data[i])) sum += dout.data[i] * reference.out.data[i];
    }
    for (size_t i = 0; i < dh.size(); ++i) {
      for (size_t e = 0; e < dh[i].size(); ++e) {
        sum += dh[i][e] * reference.final_h[i][e];
        if (reference.problem.cell == RecurrentCell::kLstm) {
          sum += dc[i][e] * reference.final_c[i][e];
        }
      }
    }
    return sum;
  }
  double derivative(double& x) {
    const double original = x;
    const double h = 1e-5;
    x = original + h;
    const double above = (*this)();
    x = original - h;
    const double below = (*this)();
    x = original;
    return (above - below) / (2 * h);
  }
  CellReference reference;
  Rows<double> dout;
  DoubleVectors dh, dc;
};

/// Samples of a tensor's derivatives, and the places they are at.
struct CellDerivatives {
  CellDerivatives(CellLoss& loss, std::vector<double>& x) {
    const size_t step = x.size() <= 60 ? 1 : (x.size() / 60) | 1;
    for (size_t i = 0; i < x.size(); i += step) {
      if (std::isnan(x[i])) continue;
      places.push_back(i);
      values.push_back(loss.derivative(x[i]));
    }
  }
  /// Relative to the largest; 16 covers the chain of factors at every token, and gates of size
  /// `scale` carry its rounding errors.
  void expect(const std::vector<float>& got, const CellTensors& t, const std::string& name) const {
    const double terms = static_cast<double>(t.longest() + t.c.hidden_dim);
    const double bound = 16 * kEps * std::sqrt(terms) * std::max(1.0f, t.c.scale);
    for (size_t i = 0; i < places.size(); ++i) {
      // The differences' own error is near 1e-10.
      ASSERT_NEAR(static_cast<double>(got[places[i]]), values[i], bound * largest_of(values) + 1e-9)
          << name << " element " << places[i];
    }
  }
  std::vector<size_t> places;
  std::vector<double> values;
};

TEST_P(RecurrentCellGradient, MatchesFiniteDifferences) {
  CellGradients any(GetParam(), nullptr);
  CellLoss loss(any);
  CellReference& x = loss.reference;
  const bool is_lstm = GetParam().cell == RecurrentCell::kLstm;
  const CellDerivatives gates(loss, x.gates.data), weight(loss, x.weight), bias(loss, x.bias);
  std::vector<CellDerivatives> h, c;
  for (auto& each : x.h) h.emplace_back(loss, each);
  for (auto& each : x.c) c.emplace_back(loss, each);
  for_each_target([&] {
    CellGradients g(GetParam(), nullptr);
    gates.expect(g.dgates.data, g.t, "gates");
    weight.expect(g.dweight, g.t, "weight");
    bias.expect(g.dbias, g.t, "bias");
    for (size_t i = 0; i < h.size(); ++i) {
      h[i].expect(g.dh0[i], g.t, "initial h");
      if (is_lstm) c[i].expect(g.dc0[i], g.t, "initial c");
    }
    EXPECT_TRUE(std::isnan(g.dgates.at(0, 0)[0]) && std::isnan(g.dgates.at(1, 0)[0]));
  });
}

TEST_P(RecurrentCellGradient, AddsToParametersAndThreadsGiveTheSameBits) {
  flush_denormals();  // as the pools' threads do: gradients of saturated gates are that small
  ThreadPool two(2), three(3);
  for_each_target([&] {
    const CellGradients one(GetParam(), nullptr);
    for (ThreadPool* pool : {&two, &three}) {
      const CellGradients other(GetParam(), pool);
      EXPECT_TRUE(same_bits(one.dgates.data, other.dgates.data));
      EXPECT_TRUE(same_bits(one.dweight, other.dweight));
      EXPECT_TRUE(same_bits(one.dbias, other.dbias));
      for (size_t i = 0; i < one.dh0.size(); ++i) {
        EXPECT_TRUE(same_bits(one.dh0[i], other.dh0[i]));
        EXPECT_TRUE(same_bits(one.dc0[i], other.dc0[i]));
      }
    }
    const CellGradients added(GetParam(), nullptr, 2.0f);
    const double terms = static_cast<double>(one.t.longest() * one.t.c.hidden_dim);
    for (size_t i = 0; i < one.dweight.size(); ++i) {
      const float sum = 2.0f + one.dweight[i];
      ASSERT_NEAR(added.dweight[i], sum, 4 * kEps * std::sqrt(terms) * (2 + std::abs(sum)));
    }
    for (size_t i = 0; i < one.dbias.size(); ++i) {
      const float sum = 2.0f + one.dbias[i];
      ASSERT_NEAR(added.dbias[i], sum, 4 * kEps * std::sqrt(terms) * (2 + std::abs(sum)));
    }
  });
}

TEST(RecurrentCellGradientEdges, EmptySequencesPassThemThrough) {
  for (RecurrentCell cell : {RecurrentCell::kLstm, RecurrentCell::kGru}) {
    for_each_target([&] {
      const CellGradients g({"empty", cell, 5, {0, 0}}, nullptr);
      EXPECT_EQ(g.dh0, g.dh);
    });
  }
}

}  // namespace
}  // namespace tarn::kernels::test
