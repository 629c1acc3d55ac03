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

/// Columns of a stage's input or output as the kernels of rows take them, from row `first` on.
template <class T>
kernels::Rows<T> block_of(const kernels::Heads<T>& heads, int64_t first, int64_t head = 0) {
  return {heads.at(first, head), heads.row_stride};
}

}  // namespace tarn::mixers
