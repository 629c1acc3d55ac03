#pragma once

#include <algorithm>

#include "mixers/mixer.h"

namespace tarn::mixers {

/// What mappings of operators onto kernels share.

/// An input or output of one head as plain rows.
template <class T>
kernels::Rows<T> rows_of(const kernels::Heads<T>& heads) {
  return {heads.data, heads.row_stride};
}

/// State tensor j of all sequences, or null where there is no state.
template <class T>
T* const* state_of(const StateRefs<T>& state, size_t tensor = 0) {
  return state ? state.tensors[tensor] : nullptr;
}

/// Rows up to the end of the last sequence.
inline int64_t spanned_rows(const kernels::Sequences& sequences) {
  int64_t rows = 0;
  for (int64_t i = 0; i < sequences.count; ++i) {
    rows = std::max(rows, sequences.begin[i] + sequences.length[i]);
  }
  return rows;
}

/// Runs a forward pass again for what it keeps on the way: forward(state, y) gets copies of the
/// initial states of `state_size` values (null: zeros) and outputs that nobody reads.
template <class Forward>
void replay(const kernels::Sequences& sequences, const StateRefs<float>& initial,
            int64_t state_size, int64_t out_dim, Arena& arena, const Forward& forward) {
  ArenaScope scope(arena);
  float** copies = nullptr;
  if (initial) {
    copies = arena.alloc<float*>(sequences.count);
    for (int64_t i = 0; i < sequences.count; ++i) {
      copies[i] = arena.alloc<float>(state_size);
      std::copy_n(initial.tensors[0][i], state_size, copies[i]);
    }
  }
  forward(copies,
          kernels::Rows<float>{arena.alloc<float>(spanned_rows(sequences) * out_dim), out_dim});
}

}  // namespace tarn::mixers
