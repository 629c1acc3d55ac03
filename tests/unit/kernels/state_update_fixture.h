#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/rng.h"
#include "kernels/state_update.h"
#include "kernels/targets.h"

namespace tarn::kernels::test {

inline constexpr double kEps = static_cast<double>(std::numeric_limits<float>::epsilon());

/// Rows × heads × channels in the middle of wider, misaligned rows; everything else is NaN, so a
/// read outside the tensor shows in the result and a write outside can be detected.
template <class T>
struct Rows {
  Rows(int64_t rows_in, int64_t heads_in, int64_t dim_in)
      : rows(rows_in), heads(heads_in), dim(dim_in), row_stride(heads_in * (dim_in + 1) + 3) {
    data.assign(3 + rows * row_stride, std::numeric_limits<T>::quiet_NaN());
  }
  T* at(int64_t row, int64_t head) { return view().at(row, head); }
  Heads<T> view() { return {data.data() + 3, row_stride, dim + 1}; }
  Rows<double> doubles() const {
    Rows<double> copy(rows, heads, dim);
    for (size_t i = 0; i < data.size(); ++i) copy.data[i] = static_cast<double>(data[i]);
    return copy;
  }

  int64_t rows, heads, dim, row_stride;
  std::vector<T> data;
};

/// The rows as tensors without heads.
template <class T>
kernels::Rows<T> view(Rows<T>& in) {
  return {in.view().data, in.row_stride};
}

/// A case of the state-update family with all its tensors.
struct Case {
  std::string name;
  FeatureMap map;
  int64_t num_heads = 1;
  int64_t value_dim = 1;
  std::vector<int64_t> lengths;
  bool normalise = true;
  bool with_state = true;
  float input_scale = 1.0f;
};

inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Tensors {
  explicit Tensors(const Case& c, uint64_t seed = 1)
      : q(num_rows(c), c.num_heads, c.map.input_dim),
        k(num_rows(c), c.num_heads, c.map.input_dim),
        v(num_rows(c), c.num_heads, c.value_dim),
        state_size(c.num_heads * c.map.feature_dim * c.value_dim),
        sum_size(c.num_heads * c.map.feature_dim) {
    // Two rows of padding before each sequence stay NaN.
    int64_t row = 0;
    for (int64_t length : c.lengths) {
      begin.push_back(row + 2);
      row += length + 2;
    }
    lengths = c.lengths;
    Philox random{.seed = seed};
    for (Rows<float>* rows : {&q, &k, &v}) fill(*rows, random, c.input_scale);
    for (size_t i = 0; i < lengths.size(); ++i) {
      s.emplace_back(state_size);
      z.emplace_back(sum_size);
      if (!c.with_state) continue;
      for (float& x : s.back()) x = random.next_normal();
      for (float& x : z.back()) x = 1.0f + random.next_uniform();
    }
    problem.sequences = {static_cast<int64_t>(lengths.size()), begin.data(), lengths.data()};
    problem.num_heads = c.num_heads;
    problem.key_dim = c.map.input_dim;
    problem.value_dim = c.value_dim;
    problem.feature_map = c.map;
    problem.normalise = c.normalise;
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  static int64_t num_rows(const Case& c) {
    int64_t rows = 1;
    for (int64_t length : c.lengths) rows += length + 2;
    return rows;
  }
  void fill(Rows<float>& rows, Philox& random, float scale) const {
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (int64_t row = begin[i]; row < begin[i] + lengths[i]; ++row) {
        for (int64_t head = 0; head < rows.heads; ++head) {
          for (int64_t c = 0; c < rows.dim; ++c) {
            rows.at(row, head)[c] = scale * random.next_normal();
          }
        }
      }
    }
  }
  int64_t longest() const {
    int64_t most = 1;
    for (int64_t length : lengths) most = std::max(most, length);
    return most;
  }

  Rows<float> q, k, v;
  int64_t state_size, sum_size;
  std::vector<int64_t> begin, lengths;
  std::vector<std::vector<float>> s, z;
  StateUpdateProblem problem;
};

/// Pointers to per-sequence vectors, as StatePointers wants them.
template <class T>
struct Pointers {
  Pointers(std::vector<std::vector<T>>& s_in, std::vector<std::vector<T>>& z_in) {
    for (auto& x : s_in) s.push_back(x.data());
    for (auto& x : z_in) z.push_back(x.data());
  }
  StatePointers<T> get() { return {s.data(), z.data()}; }
  StatePointers<const T> get_const() { return {s.data(), z.data()}; }
  std::vector<T*> s, z;
};

inline std::vector<std::vector<double>> doubles(const std::vector<std::vector<float>>& in) {
  std::vector<std::vector<double>> out;
  for (const auto& x : in) out.emplace_back(x.begin(), x.end());
  return out;
}

/// Largest value of each output if nothing cancelled: the reference over absolute values.
struct Expected {
  Expected(Tensors& t, bool causal) : out(t.q.rows, t.q.heads, t.v.dim), magnitude(out) {
    s = doubles(t.s);
    z = doubles(t.z);
    Rows<double> q = t.q.doubles(), k = t.k.doubles(), v = t.v.doubles();
    reference::state_update(t.problem, causal, q.view(), k.view(), v.view(),
                            causal ? Pointers(s, z).get() : StatePointers<double>{}, out.view());
    auto abs_s = doubles(t.s);
    auto abs_z = doubles(t.z);
    for (auto& each : abs_s) {
      for (double& x : each) x = std::abs(x);
    }
    for (Rows<double>* rows : {&q, &k, &v}) {
      // φ ≥ 0 for every map but the identity, which then sees absolute values.
      if (rows != &v && t.problem.feature_map.reference != identity_map(1).reference) continue;
      for (double& x : rows->data) x = std::abs(x);
    }
    reference::state_update(t.problem, causal, q.view(), k.view(), v.view(),
                            causal ? Pointers(abs_s, abs_z).get() : StatePointers<double>{},
                            magnitude.view());
    magnitude_s = std::move(abs_s);
  }
  Rows<double> out, magnitude;
  std::vector<std::vector<double>> s, z, magnitude_s;
};

/// Calls `body` once per SIMD target that this CPU runs.
template <class Body>
void for_each_target(const Body& body) {
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE("target " + target);
    ASSERT_TRUE(force_target(target));
    body();
  }
  ASSERT_TRUE(force_target(""));
}

/// Equal as bits, NaN included.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace tarn::kernels::test
