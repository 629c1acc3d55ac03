#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/rng.h"
#include "kernels/state_transition.h"
#include "state_update_fixture.h"

namespace tarn::kernels::test {

inline constexpr Decay kDecays[] = {Decay::kNone, Decay::kPerHead, Decay::kPerToken,
                                    Decay::kPerChannel};
inline constexpr Erase kErases[] = {Erase::kNone, Erase::kDelta, Erase::kRankOne};

/// A problem of the state transition with the values that its gates take, drawn for each of them.
struct TransitionCase {
  std::string name = {};
  Decay decay = Decay::kNone;
  Erase erase = Erase::kNone;
  int64_t key_heads = 1;
  int64_t group = 1;  ///< heads per key head
  int64_t key_dim = 1;
  int64_t value_dim = 1;
  std::vector<int64_t> lengths = {};
  std::vector<float> g = {0.0f, -1e-6f, -0.1f, -5.0f, -50.0f, -500.0f};
  std::vector<float> beta = {0.0f, 1.0f, 2.0f};  ///< empty: no tensor, which means 1
  bool with_state = true;
};

inline void PrintTo(const TransitionCase& c, std::ostream* out) { *out << c.name; }

inline std::string policy_name(Decay decay, Erase erase) {
  const char* decays[] = {"none", "per_head", "per_token", "per_channel"};
  const char* erases[] = {"none", "delta", "rank_one"};
  return std::string(decays[static_cast<int>(decay)]) + "_" + erases[static_cast<int>(erase)];
}

/// All rows of a problem; those that its policies do not use have no channels and are not passed on.
template <class T>
struct TransitionTensors {
  Rows<T> q, k, v, g, beta, a, b;

  explicit TransitionTensors(const TransitionCase& c)
      : q(num_rows(c), c.key_heads, c.key_dim),
        k(q),
        v(num_rows(c), c.key_heads * c.group, c.value_dim),
        g(num_rows(c), c.key_heads * c.group, decay_channels(c)),
        beta(num_rows(c), c.key_heads * c.group,
             c.erase == Erase::kRankOne || c.beta.empty() ? 0 : 1),
        a(num_rows(c), c.key_heads, c.erase == Erase::kRankOne ? c.key_dim : 0),
        b(a) {}
  /// Two rows of padding before each sequence, one at the end.
  static int64_t num_rows(const TransitionCase& c) {
    int64_t rows = 1;
    for (int64_t length : c.lengths) rows += length + 2;
    return rows;
  }
  static int64_t decay_channels(const TransitionCase& c) {
    if (c.decay == Decay::kPerChannel) return c.key_dim;
    return c.decay == Decay::kPerToken ? 1 : 0;
  }
  StateTransitionRows<T> view() {
    const auto used = [](Rows<T>& rows) { return rows.dim > 0 ? rows.view() : Heads<T>{}; };
    return {used(q), used(k), used(v), used(g), used(beta), used(a), used(b)};
  }
  StateTransitionRows<const T> const_view() {
    const StateTransitionRows<T> rows = view();
    return {rows.q, rows.k, rows.v, rows.g, rows.beta, rows.a, rows.b};
  }
  /// Calls `visit(rows, name)` for each tensor in use.
  template <class Visit>
  void for_each(const Visit& visit) {
    const char* names[] = {"q", "k", "v", "g", "beta", "a", "b"};
    Rows<T>* all[] = {&q, &k, &v, &g, &beta, &a, &b};
    for (int i = 0; i < 7; ++i) {
      if (all[i]->dim > 0) visit(*all[i], names[i]);
    }
  }
};

/// The input of a case: queries and values are normal, keys have length 1, a and b are those of
/// RWKV-7 (b = −k̂, a = k̂ ∘ rate with rates in [0, 1]), so that no state grows without bound.
struct TransitionInput : TransitionTensors<float> {
  explicit TransitionInput(const TransitionCase& c, uint64_t seed = 1)
      : TransitionTensors(c),
        lengths(c.lengths),
        head_decay(v.heads),
        size(c.key_dim * c.value_dim) {
    int64_t row = 0;
    for (int64_t length : lengths) {
      begin.push_back(row + 2);
      row += length + 2;
    }
    Philox random{.seed = seed};
    const auto normal = [&] { return random.next_normal(); };
    const auto pick = [&](const std::vector<float>& from) {
      const float place = random.next_uniform() * static_cast<float>(from.size());
      return from[std::min(static_cast<size_t>(place), from.size() - 1)];
    };
    fill(q, normal);
    fill(v, normal);
    fill(k, normal);
    normalise(k);
    if (g.dim > 0) fill(g, [&] { return pick(c.g); });
    if (beta.dim > 0) fill(beta, [&] { return pick(c.beta); });
    if (a.dim > 0) {
      fill(b, normal);
      normalise(b);
      for_each_row([&](int64_t r) {
        for (int64_t head = 0; head < a.heads; ++head) {
          for (int64_t i = 0; i < a.dim; ++i) {
            a.at(r, head)[i] = -b.at(r, head)[i] * random.next_uniform();
          }
        }
      });
    }
    for (double& x : head_decay) x = pick(c.g);
    for (size_t i = 0; i < lengths.size(); ++i) {
      state.emplace_back(v.heads * size);
      for (float& x : state.back()) x = c.with_state ? normal() : 0.0f;
    }
    problem.sequences = {static_cast<int64_t>(lengths.size()), begin.data(), lengths.data()};
    problem.num_heads = v.heads;
    problem.num_key_heads = q.heads;
    problem.key_dim = c.key_dim;
    problem.value_dim = c.value_dim;
    problem.decay = c.decay;
    problem.erase = c.erase;
    problem.head_decay = c.decay == Decay::kPerHead ? head_decay.data() : nullptr;
    problem.scale = 0.5;
  }
  TransitionInput(const TransitionInput&) = delete;
  TransitionInput& operator=(const TransitionInput&) = delete;

  template <class Body>
  void for_each_row(const Body& body) const {
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (int64_t row = begin[i]; row < begin[i] + lengths[i]; ++row) body(row);
    }
  }
  template <class Draw>
  void fill(Rows<float>& rows, const Draw& draw) const {
    for_each_row([&](int64_t row) {
      for (int64_t head = 0; head < rows.heads; ++head) {
        for (int64_t i = 0; i < rows.dim; ++i) rows.at(row, head)[i] = draw();
      }
    });
  }
  void normalise(Rows<float>& rows) const {
    for_each_row([&](int64_t row) {
      for (int64_t head = 0; head < rows.heads; ++head) {
        float* x = rows.at(row, head);
        double sum = 0;
        for (int64_t i = 0; i < rows.dim; ++i) sum += static_cast<double>(x[i] * x[i]);
        for (int64_t i = 0; i < rows.dim; ++i) x[i] /= static_cast<float>(std::sqrt(sum));
      }
    });
  }
  Rows<float> new_out() const { return Rows<float>(v.rows, v.heads, v.dim); }
  int64_t longest() const {
    int64_t most = 1;
    for (int64_t length : lengths) most = std::max(most, length);
    return most;
  }

  std::vector<int64_t> begin, lengths;
  std::vector<double> head_decay;
  int64_t size;  ///< of one head's state
  std::vector<std::vector<float>> state;
  StateTransitionProblem problem;
};

template <class T>
std::vector<T*> pointers(std::vector<std::vector<T>>& vectors) {
  std::vector<T*> result;
  for (auto& each : vectors) result.push_back(each.data());
  return result;
}

/// The same tensors in double precision, answered by the reference.
struct TransitionReference : TransitionTensors<double> {
  TransitionReference(const TransitionCase& c, TransitionInput& input)
      : TransitionTensors(c),
        problem(input.problem),
        state(doubles(input.state)),
        final_state(state),
        out(v.rows, v.heads, v.dim) {
    std::vector<Rows<float>*> from;
    input.for_each([&](Rows<float>& rows, const char*) { from.push_back(&rows); });
    size_t i = 0;
    for_each([&](Rows<double>& rows, const char*) { rows = from[i++]->doubles(); });
  }
  void run() {
    final_state = state;
    reference::state_transition(problem, const_view(), pointers(final_state).data(), out.view());
  }

  StateTransitionProblem problem;
  std::vector<std::vector<double>> state, final_state;
  Rows<double> out;
};

}  // namespace tarn::kernels::test
