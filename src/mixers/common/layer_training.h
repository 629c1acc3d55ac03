#pragma once

#include <span>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/part_times.h"
#include "base/threads.h"
#include "mixers/layer_program.h"

namespace tarn::mixers {

/// A layer in training: y = residual + layer(x), with every intermediate value kept for backward.
struct LayerTraining {
  const MixerDef* def = nullptr;
  const MixerConfig* config = nullptr;
  const LayerProgram* program = nullptr;
  kernels::Sequences sequences;        ///< packed
  const int64_t* positions = nullptr;  ///< null: all start at 0
  std::span<const float* const> params;
  const float* x = nullptr;         ///< [rows, model_dim]
  const float* residual = nullptr;  ///< like x; null: none
  float* y = nullptr;
  const float* received = nullptr;  ///< [rows, program->received_width()]
  float* handed_on = nullptr;       ///< [rows, program->handed_on.width()]; null: unwanted
  float* kept = nullptr;            ///< layer_kept_columns() · rows floats
  StateRefs<float> state;           ///< forward: in/out; backward: as it was before
  DType precision = DType::kF32;    ///< of the operands of linear maps: kF32 or kBF16
  ThreadPool* pool = nullptr;
  Arena* arena = nullptr;
  PartTimes* times = nullptr;
};

/// Floats per row that forward keeps: all values but x, y and what is received, and what the operator
/// saves.
int64_t layer_kept_columns(const LayerProgram& program);

void layer_forward(const LayerTraining& call);

struct LayerGradients {
  const float* dy = nullptr;  ///< [rows, model_dim]
  float* dx = nullptr;        ///< overwritten; includes dy when `residual_is_x`
  bool residual_is_x = false;
  std::span<float* const> dparams;    ///< added to
  StateRefs<const float> dfinal;      ///< empty: zeros
  StateRefs<float> dinitial;          ///< empty: not wanted
  const float* dhanded_on = nullptr;  ///< arriving at what was handed on; null: zeros
  float* dreceived = nullptr;         ///< overwritten; needed if rows are received
};

/// Scratch: rows · (widths of all intermediate values) floats. Sums over rows are taken in fixed
/// pieces, so the bits do not depend on the pool.
void layer_backward(const LayerTraining& call, const LayerGradients& gradients);

/// The layer in double precision by plain loops: ground truth of the two above and of run_layer.
struct LayerReference {
  const MixerDef* def = nullptr;
  const MixerConfig* config = nullptr;
  const LayerProgram* program = nullptr;
  kernels::Sequences sequences;
  const int64_t* positions = nullptr;
  std::span<const double* const> params;
  const double* x = nullptr;
  double* y = nullptr;
  const double* received = nullptr;
  double* handed_on = nullptr;  ///< null: unwanted
  StateRefs<double> state;
};
void layer_reference(const LayerReference& call);

}  // namespace tarn::mixers
