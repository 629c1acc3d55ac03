#pragma once

#include <cstdint>

#include "kernels/recurrent_cell.h"

namespace tarn::kernels {

/// One token of one sequence, element by element.
struct CellRow {
  int64_t hidden_dim = 0;
  const float* x = nullptr;          ///< the input's gates
  const float* recurrent = nullptr;  ///< W·h + b
  float* h = nullptr;                ///< in and out
  float* c = nullptr;
  float* out = nullptr;    ///< h once more
  float* saved = nullptr;  ///< or null
};

struct CellRowGradient {
  int64_t hidden_dim = 0;
  const float* saved = nullptr;
  const float* before = nullptr;  ///< c (LSTM) or h (GRU) before the token
  const float* dout = nullptr;
  /// In: the gradient of h from later tokens. Out: its part that does not pass W (GRU; zeros).
  float* dh = nullptr;
  float* dc = nullptr;          ///< in and out
  float* dgates = nullptr;      ///< gradient of x
  float* drecurrent = nullptr;  ///< gradient of W·h + b
};

struct CellRowKernels {
  void (*forward)(const CellRow&);
  void (*backward)(const CellRowGradient&);
};
CellRowKernels cell_row_kernels(RecurrentCell cell);

}  // namespace tarn::kernels
