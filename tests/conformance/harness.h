#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/arena.h"
#include "base/threads.h"
#include "mixers/mixer.h"

namespace tarn::conformance {

/// Which tokens a call covers: per sequence its length and how many tokens went before.
struct Layout {
  std::vector<int64_t> lengths;
  std::vector<int64_t> prefixes;  ///< empty: none
  int64_t gap_rows = 0;           ///< padding rows between sequences, filled with NaN
};

template <class T>
using StateValues = std::vector<std::vector<std::vector<T>>>;  // [tensor][sequence][element]

/// Random inputs and a state reached by really running the prefix; all forms start from copies.
struct Problem {
  Layout layout;
  std::vector<int64_t> begins;
  int64_t rows = 0;
  int64_t width = 0;                        ///< values per row, an odd padding included
  std::vector<double> inputs;               ///< [rows, width]
  std::vector<std::vector<double>> params;  ///< of the operator
  StateValues<double> state;                ///< empty when the config has no state
};

template <class T>
struct Outcome {
  std::vector<T> out;  ///< [rows, out width]
  std::vector<float> saved;
  StateValues<T> state;
};

struct Gradients {
  std::vector<float> dinputs;  ///< [rows, width]
  std::vector<std::vector<float>> dparams;
  StateValues<float> dinitial;
};

/// Values of a parameter near its start, none of them special, rounded to float.
std::vector<double> draw_parameter(const mixers::ParamSpec& spec, uint64_t seed);

/// Pointer tables over StateValues, as StateRefs wants them.
template <class T, class Values>
struct StateTable {
  std::vector<std::vector<T*>> pointers;
  std::vector<T* const*> tensors;

  explicit StateTable(Values& values) {
    for (auto& tensor : values) {
      auto& row = pointers.emplace_back();
      for (auto& sequence : tensor) row.push_back(sequence.data());
    }
    for (auto& row : pointers) tensors.push_back(row.data());
  }
  mixers::StateRefs<T> refs() const { return {tensors}; }
};

/// Pointers to each of several arrays.
template <class T, class Values>
std::vector<T*> pointers_to(Values& arrays) {
  std::vector<T*> result;
  for (auto& array : arrays) result.push_back(array.data());
  return result;
}

/// One mechanism with one of its example configs.
class Harness {
 public:
  Harness(const mixers::MixerDef& mixer, const std::string& config_text);

  const mixers::MixerDef& mixer;
  std::shared_ptr<const mixers::MixerConfig> config;
  mixers::OpShape shape;
  std::vector<mixers::StateSpec> state_specs;
  bool prepares = false;  ///< forms get MixerDef::prepare's result, as in the runtime

  bool causal() const { return !state_specs.empty(); }
  int64_t out_width() const { return shape.out_heads * shape.out_dim; }
  /// Whether a column of the inputs belongs to one whose values have no bounds.
  bool may_have_any_size(int64_t column) const;

  Problem make_problem(const Layout& layout, uint64_t seed, bool with_state) const;

  /// The double-precision token loop.
  Outcome<double> reference(const Problem& problem) const;
  /// A float form; `out` starts as NaN everywhere.
  using FormFunction = void (*)(const mixers::OpArgs<float>&) noexcept;
  Outcome<float> run(FormFunction form, const Problem& problem, int64_t chunk_size,
                     ThreadPool* pool = nullptr) const;
  /// The chunk form on one sequence of these inputs (in the order of OpShape) from the initial state.
  Outcome<float> run_rows(const std::vector<std::vector<double>>& rows) const;
  /// Feeds the problem one token at a time through the step form.
  Outcome<float> run_steps(const Problem& problem) const;
  /// Gradient of Σ out·dout + Σ final·dfinal.
  Gradients gradient(const Problem& problem, const std::vector<float>& dout,
                     const StateValues<float>& dfinal, ThreadPool* pool = nullptr) const;

  /// Elements of state tensor `tensor` for a sequence of `tokens` tokens.
  int64_t state_elements(size_t tensor, int64_t tokens) const;

 private:
  template <class T>
  Outcome<T> call(void (*form)(const mixers::OpArgs<T>&), const Problem& problem,
                  int64_t chunk_size, ThreadPool* pool) const;
};

/// max |a − b| / max(|b|): the error of a relative to the size of b's values.
template <class A, class B>
double relative_error(const std::vector<A>& a, const std::vector<B>& b) {
  double largest = 0.0;
  double difference = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    if (std::isnan(static_cast<double>(b[i]))) continue;  // a padding row of the reference
    const double delta = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(delta <= difference)) difference = delta;  // keeps a NaN of `a`
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return difference == 0.0 ? 0.0 : difference / largest;
}

template <class A, class B>
double relative_error(const StateValues<A>& a, const StateValues<B>& b) {
  double worst = 0.0;
  for (size_t j = 0; j < b.size(); ++j) {
    for (size_t i = 0; i < b[j].size(); ++i) {
      const double error = relative_error(a[j][i], b[j][i]);
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

/// Same values bit for bit, NaN of padding included.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || __builtin_memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace tarn::conformance
