#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/threads.h"
#include "kernels/recurrent_cell.h"
#include "recurrent_cell_fixture.h"

namespace tarn::kernels::test {
namespace {

class RecurrentCells : public testing::TestWithParam<CellCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, RecurrentCells, testing::ValuesIn(cell_cases()),
                         [](const auto& instance) { return instance.param.name; });

/// The forward pass in pieces of `piece` tokens (0: one call).
struct CellRun {
  CellRun(const CellCase& c, int64_t piece, ThreadPool* pool, bool step = false)
      : t(c), out(t.out_rows()) {
    t.problem.pool = pool;
    Arena arena;
    const PackedOperand weight = pack_recurrent(t.problem, DType::kF32, t.weight.data(), arena);
    if (piece == 0) piece = t.longest();
    for (int64_t done = 0; done < t.longest(); done += piece) {
      std::vector<float*> h, c_state;
      std::vector<int64_t> begin, lengths;
      for (size_t i = 0; i < t.begin.size(); ++i) {
        if (done >= c.lengths[i]) continue;
        begin.push_back(t.begin[i] + done);
        lengths.push_back(std::min(piece, c.lengths[i] - done));
        h.push_back(t.h[i].data());
        c_state.push_back(t.c_state[i].data());
      }
      RecurrentProblem problem = t.problem;
      problem.sequences = {static_cast<int64_t>(begin.size()), begin.data(), lengths.data()};
      const RecurrentState<float> state{h.data(), c_state.data()};
      if (step) {
        recurrent_step(problem, view(*t.gates), weight, t.bias.data(), state, view(out), arena);
      } else {
        recurrent_forward(problem, view(*t.gates), weight, t.bias.data(), state, view(out), {},
                          arena);
      }
    }
  }
  CellTensors t;
  Rows<float> out;
};

/// Gates are sums of E products, and errors pass from token to token; relative to the largest
/// output. Gates of size `scale` carry its rounding errors.
TEST_P(RecurrentCells, ForwardMatchesReference) {
  for_each_target([&] {
    CellRun run(GetParam(), 0, nullptr);
    const CellTensors fresh(GetParam());
    CellReference want(fresh);
    want.run();
    const double terms = static_cast<double>(fresh.longest() + fresh.c.hidden_dim);
    const double bound = 8 * kEps * std::sqrt(terms) * std::max(1.0f, fresh.c.scale);
    const double largest = largest_of(want.out.data);
    for (size_t i = 0; i < want.out.data.size(); ++i) {
      const double got = static_cast<double>(run.out.data[i]);
      ASSERT_EQ(std::isnan(got), std::isnan(want.out.data[i]));
      if (!std::isnan(got)) {
        ASSERT_NEAR(got, want.out.data[i], bound * largest);
      }
    }
    for (size_t i = 0; i < want.final_h.size(); ++i) {
      for (size_t e = 0; e < want.final_h[i].size(); ++e) {
        ASSERT_NEAR(static_cast<double>(run.t.h[i][e]), want.final_h[i][e],
                    bound * std::max(largest, largest_of(want.h[i])));
        if (fresh.c.cell == RecurrentCell::kGru) continue;
        ASSERT_NEAR(static_cast<double>(run.t.c_state[i][e]), want.final_c[i][e],
                    bound * std::max(largest_of(want.c[i]), largest_of(want.final_c[i])));
      }
    }
  });
}

void expect_same(const CellRun& a, const CellRun& b) {
  EXPECT_TRUE(same_bits(a.out.data, b.out.data));
  for (size_t i = 0; i < a.t.h.size(); ++i) {
    EXPECT_TRUE(same_bits(a.t.h[i], b.t.h[i]));
    EXPECT_TRUE(same_bits(a.t.c_state[i], b.t.c_state[i]));
  }
}

TEST_P(RecurrentCells, StepsSplitsAndThreadsGiveTheSameBits) {
  ThreadPool two(2), three(3);
  for_each_target([&] {
    const CellRun whole(GetParam(), 0, nullptr);
    expect_same(whole, CellRun(GetParam(), 1, nullptr, true));
    for (int64_t piece : {1, 4}) expect_same(whole, CellRun(GetParam(), piece, nullptr));
    expect_same(whole, CellRun(GetParam(), 0, &two));
    expect_same(whole, CellRun(GetParam(), 0, &three));
    expect_same(whole, CellRun(GetParam(), 1, &three, true));
  });
}

TEST_P(RecurrentCells, BatchMatesDoNotChangeASequence) {
  for_each_target([&] {
    CellRun together(GetParam(), 0, nullptr);
    CellTensors t(GetParam());
    Arena arena;
    const PackedOperand weight = pack_recurrent(t.problem, DType::kF32, t.weight.data(), arena);
    for (size_t i = 0; i < t.begin.size(); ++i) {
      RecurrentProblem problem = t.problem;
      problem.sequences = {1, &t.begin[i], &t.c.lengths[i]};
      float* h = t.h[i].data();
      float* c = t.c_state[i].data();
      Rows<float> out = t.out_rows();
      recurrent_forward(problem, view(*t.gates), weight, t.bias.data(), {&h, &c}, view(out), {},
                        arena);
      EXPECT_TRUE(same_bits(t.h[i], together.t.h[i]));
      for (int64_t row = t.begin[i]; row < t.begin[i] + t.c.lengths[i]; ++row) {
        for (int64_t e = 0; e < t.c.hidden_dim; ++e) {
          ASSERT_EQ(out.at(row, 0)[e], together.out.at(row, 0)[e]);
        }
      }
    }
  });
}

TEST(RecurrentCellEdges, EmptySequencesAndBatchesTouchNothing) {
  for (RecurrentCell cell : {RecurrentCell::kLstm, RecurrentCell::kGru}) {
    for_each_target([&] {
      const CellRun run({"empty", cell, 5, {0, 0}}, 0, nullptr);
      EXPECT_EQ(run.t.h, CellTensors(run.t.c).h);
      const CellRun none({"none", cell, 5, {}}, 0, nullptr);
    });
  }
}

TEST(RecurrentCellEdges, SaturatedGatesKeepTheCellForALongTime) {
  for_each_target([&] {
    // Forget gate 1, input gate 0: the cell is a constant, and h = tanh(c) with an open output.
    CellTensors t({"long", RecurrentCell::kLstm, 17, {5000}});
    for (int64_t row = t.begin[0]; row < t.begin[0] + 5000; ++row) {
      for (int64_t e = 0; e < 17; ++e) {
        t.gates->at(row, 0)[e] = -1e30f;
        t.gates->at(row, 0)[17 + e] = 1e30f;
        t.gates->at(row, 0)[51 + e] = 200;
      }
    }
    Rows<float> out = t.out_rows();
    const Vectors before = t.c_state;
    CellPointers state(t.h, t.c_state);
    Arena arena;
    const PackedOperand weight = pack_recurrent(t.problem, DType::kF32, t.weight.data(), arena);
    recurrent_forward(t.problem, view(*t.gates), weight, t.bias.data(), state.get(), view(out), {},
                      arena);
    EXPECT_EQ(t.c_state, before);
    for (int64_t e = 0; e < 17; ++e) {
      const double want = std::tanh(static_cast<double>(before[0][e]));
      EXPECT_NEAR(static_cast<double>(t.h[0][e]), want, 2 * kEps * std::abs(want));
    }
  });
}

/// In bf16 the operands of products are rounded: 2⁻⁸ relative, and a sum of E of them.
TEST(RecurrentCellEdges, Bf16WeightsStayClose) {
  CellTensors t({"bf16", RecurrentCell::kGru, 48, {20, 13}});
  Rows<float> out = t.out_rows();
  CellPointers state(t.h, t.c_state);
  CellReference want(t);
  want.run();
  Arena arena;
  const PackedOperand weight = pack_recurrent(t.problem, DType::kBF16, t.weight.data(), arena);
  recurrent_forward(t.problem, view(*t.gates), weight, t.bias.data(), state.get(), view(out), {},
                    arena);
  bool any_differs = false;
  for (size_t i = 0; i < want.out.data.size(); ++i) {
    if (std::isnan(want.out.data[i])) continue;
    const double got = static_cast<double>(out.data[i]);
    ASSERT_NEAR(got, want.out.data[i], 4.0 / 256);
    any_differs |= std::abs(got - want.out.data[i]) > 1e-5;
  }
  EXPECT_TRUE(any_differs);
}

}  // namespace
}  // namespace tarn::kernels::test
