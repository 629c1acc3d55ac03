#pragma once

#include <cstdint>

#include "kernels/cpu/diagonal_scan_calls.h"
#include "kernels/cpu/state_update_scratch.h"
#include "kernels/diagonal_scan.h"

namespace tarn::kernels {

struct SelectiveForwardCall {
  DiagonalScanProblem problem;
  SelectiveScanInputs<float> inputs;
  float* const* state;
  Rows<float> y;
  float* borders;
  void (*items)(const SelectiveForwardCall&, int64_t, int64_t, float*);
  int64_t scratch_size = 0;
  float* scratch = nullptr;
};

struct SelectiveBackwardCall {
  DiagonalScanProblem problem;
  SelectiveScanInputs<float> inputs;
  const float* borders;
  Rows<const float> dy;
  const float* const* dfinal;
  SelectiveScanGradients gradients;
  float* sums;         ///< [groups][tokens of all sequences][dB | dC]
  int64_t all_tokens;  ///< of all sequences
  void (*items)(const SelectiveBackwardCall&, int64_t, int64_t, float*);
  int64_t scratch_size = 0;
  float* scratch = nullptr;
};

}  // namespace tarn::kernels
