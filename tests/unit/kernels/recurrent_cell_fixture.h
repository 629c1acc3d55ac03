#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/recurrent_cell.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {

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

inline void PrintTo(const CellCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<CellCase> cell_cases() {
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

struct CellPointers {
  CellPointers(Vectors& h_in, Vectors& c_in) {
    for (auto& x : h_in) h.push_back(x.data());
    for (auto& x : c_in) c.push_back(x.data());
  }
  RecurrentState<float> get() { return {h.data(), c.data()}; }
  RecurrentState<const float> get_const() { return {h.data(), c.data()}; }
  std::vector<float*> h, c;
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

inline double largest_of(const std::vector<double>& x) {
  double largest = 0;
  for (double each : x) {
    if (!std::isnan(each)) largest = std::max(largest, std::abs(each));
  }
  return largest;
}

}  // namespace tarn::kernels::test
