#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/gates.h"
#include "mixers/layer_program.h"

namespace tarn::mixers {

/// Scalar functions for stages, in the precision of their argument; nothing overflows.

template <class T>
T sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

/// log(1 + e^x).
template <class T>
T softplus(T x) {
  return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
}

/// Σ f(c) for c < size, in eight sums side by side, so that additions need not wait for each other. The
/// order is fixed: the same bits wherever it runs.
template <class T, class Function>
T sum_of(int64_t size, const Function& f) {
  constexpr int64_t kLanes = 8;
  T lanes[kLanes] = {};
  const int64_t whole = size / kLanes * kLanes;
  for (int64_t c = 0; c < whole; c += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += f(c + l);
  }
  for (int64_t c = whole; c < size; ++c) lanes[c - whole] += f(c);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

/// Columns of a stage's input or output as the kernels of rows take them, from row `first` on.
template <class T>
kernels::Rows<T> block_of(const kernels::Heads<T>& heads, int64_t first, int64_t head = 0) {
  return {heads.at(first, head), heads.row_stride};
}

}  // namespace tarn::mixers
