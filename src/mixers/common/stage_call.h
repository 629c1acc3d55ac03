#pragma once

#include <algorithm>
#include <cstdint>

#include "mixers/layer_program.h"

namespace tarn::mixers {

constexpr size_t kMaxStageInputs = 12;
constexpr size_t kMaxLayerStates = 8;
/// Rows that a thread takes at once, and over which partial gradients of parameters are summed: the
/// bits do not depend on the number of threads.
constexpr int64_t kStageRows = 64;

/// Rows that packed sequences span.
inline int64_t packed_rows(const kernels::Sequences& sequences) {
  if (sequences.count == 0) return 0;
  return sequences.begin[sequences.count - 1] + sequences.length[sequences.count - 1];
}

/// A stage's own tensors of the state of its layer.
template <class T>
StateRefs<T> state_part(const StateRefs<T>& state, const Stage& stage) {
  if (!state) return {};
  return {state.tensors.subspan(stage.first_state, stage.state_count)};
}

/// Runs a stage on all rows: rowwise ones in blocks on the threads of the pool.
inline void run_stage(const StageArgs<float>& args, int64_t rows) {
  if (!args.stage->def->rowwise) {
    args.stage->def->forward(args);
    return;
  }
  const auto body = [&args](int64_t begin, int64_t end, int) {
    StageArgs<float> part = args;
    part.pool = nullptr;
    part.first = begin;
    part.end = end;
    args.stage->def->forward(part);
  };
  parallel_for(rows < kStageRows ? nullptr : args.pool, rows, body);
}

}  // namespace tarn::mixers
