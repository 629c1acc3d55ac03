#include "kernels/recurrent_cell.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/threads.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {
namespace {

using Vectors = std::vector<std::vector<float>>;
using DoubleVectors = std::vector<std::vector<double>>;

struct CellCase {
  std::string name;
  RecurrentCell cell = RecurrentCell::kLstm;
  int64_t hidden_dim = 1;
  std::vector<int64_t> lengths;
  bool with_state = true;
  float scale = 1.0f;  ///< of the inputs' gates
};

void PrintTo(const CellCase& c, std::ostream* out) { *out << c.name; }

std::vector<CellCase> cases() {
  std::vector<CellCase> all;
  for (RecurrentCell cell : {RecurrentCell::kLstm, RecurrentCell::kGru}) {
    const std::string kind = cell == RecurrentCell::kLstm ? "lstm_" : "gru_";
    all.push_back({kind + "1", cell, 1, {1, 2}});
    all.push_back({kind + "3", cell, 3, {5, 0, 9}});
    all.push_back({kind + "16", cell, 16, {17, 1, 3, 8}});
    all.push_back({kind + "33_zeros", cell, 33, {12, 7}, false});
    all.push_back({kind + "72", cell, 72, {10, 11, 4, 4, 9}});
    all.push_back({kind + "small", cell, 16, {6}, false, 1e-3f});
    all.push_back({kind + "large", cell, 16, {6}, true, 40.0f});
  }
  return all;
}

struct CellTensors {
  explicit CellTensors(const CellCase& c_in) : c(c_in) {
    int64_t row = 0;
    for (int64_t length : c.lengths) {
      begin.push_back(row + 2);  // two rows of padding stay NaN
      row += length + 2;
    }
    num_rows = row + 1;
    problem.cell = c.cell;
    problem.sequences = {static_cast<int64_t>(begin.size()), begin.data(), c.lengths.data()};
    problem.hidden_dim = c.hidden_dim;
    const int64_t E = c.hidden_dim;
    gates = std::make_unique<Rows<float>>(num_rows, 1, problem.gates_dim());
    Philox random{.seed = 21};
    fill(*gates, random, c.scale);
    weight.resize(problem.gates_dim() * E);
    bias.resize(problem.gates_dim());
    for (float& x : weight) x = random.next_normal() / std::sqrt(static_cast<float>(E));
    for (float& x : bias) x = c.scale * random.next_normal();
    for (Vectors* state : {&h, &c_state}) {
      state->assign(c.lengths.size(), std::vector<float>(E));
      for (auto& each : *state) {
        for (float& x : each) x = c.with_state ? random.next_normal() : 0.0f;
      }
    }
  }
  CellTensors(const CellTensors&) = delete;
  CellTensors& operator=(const CellTensors&) = delete;

  template <class T, class Body>
  void each_element(Rows<T>& in, const Body& body) const {
    for (size_t i = 0; i < begin.size(); ++i) {
      for (int64_t row = begin[i]; row < begin[i] + c.lengths[i]; ++row) {
        for (int64_t e = 0; e < in.dim; ++e) body(in.at(row, 0)[e]);
      }
    }
  }
  void fill(Rows<float>& in, Philox& random, float scale) const {
    each_element(in, [&](float& x) { x = scale * random.next_normal(); });
  }
  int64_t longest() const {
    int64_t most = 1;
    for (int64_t length : c.lengths) most = std::max(most, length);
    return most;
  }
  Rows<float> out_rows() const { return Rows<float>(num_rows, 1, c.hidden_dim); }

  CellCase c;
  std::vector<int64_t> begin;
  int64_t num_rows = 0;
  RecurrentProblem problem;
  std::unique_ptr<Rows<float>> gates;
  std::vector<float> weight, bias;
  Vectors h, c_state;
};

template <class T>
kernels::Rows<T> view(Rows<T>& in) {
  return {in.view().data, in.row_stride};
}

struct CellPointers {
  CellPointers(Vectors& h_in, Vectors& c_in) {
    for (auto& x : h_in) h.push_back(x.data());
    for (auto& x : c_in) c.push_back(x.data());
  }
  RecurrentState<float> get() { return {h.data(), c.data()}; }
  RecurrentState<const float> get_const() { return {h.data(), c.data()}; }
  std::vector<float*> h, c;
};

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

/// The case in double.
struct CellReference {
  explicit CellReference(const CellTensors& t)
      : problem(t.problem),
        gates(t.gates->doubles()),
        out(t.num_rows, 1, t.c.hidden_dim),
        weight(t.weight.begin(), t.weight.end()),
        bias(t.bias.begin(), t.bias.end()),
        h(doubles(t.h)),
        c(doubles(t.c_state)) {}
  void run() {
    final_h = h;
    final_c = c;
    std::vector<double*> to_h, to_c;
    for (auto& each : final_h) to_h.push_back(each.data());
    for (auto& each : final_c) to_c.push_back(each.data());
    reference::recurrent(problem, view(gates), weight.data(), bias.data(),
                         {to_h.data(), to_c.data()}, view(out));
  }
  RecurrentProblem problem;
  Rows<double> gates, out;
  std::vector<double> weight, bias;
  DoubleVectors h, c, final_h, final_c;
};

double largest_of(const std::vector<double>& x) {
  double largest = 0;
  for (double each : x) {
    if (!std::isnan(each)) largest = std::max(largest, std::abs(each));
  }
  return largest;
}

class RecurrentCells : public testing::TestWithParam<CellCase> {};

INSTANTIATE_TEST_SUITE_P(Shapes, RecurrentCells, testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

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

TEST_P(RecurrentCells, BackwardMatchesFiniteDifferences) {
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

TEST_P(RecurrentCells, BackwardAddsToParametersAndThreadsGiveTheSameBits) {
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

TEST(RecurrentCellEdges, EmptySequencesPassGradientsAndStates) {
  for (RecurrentCell cell : {RecurrentCell::kLstm, RecurrentCell::kGru}) {
    for_each_target([&] {
      const CellGradients g({"empty", cell, 5, {0, 0}}, nullptr);
      EXPECT_EQ(g.dh0, g.dh);
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
