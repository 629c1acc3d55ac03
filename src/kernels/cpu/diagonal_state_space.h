#pragma once

#include <cstdint>

#include "kernels/cpu/diagonal_scan_calls.h"
#include "kernels/diagonal_scan.h"

namespace tarn::kernels {

struct StateSpaceForwardCall {
  DiagonalScanProblem problem;
  DiagonalStateSpaceInputs inputs;
  float* const* state;
  Rows<float> y;
  float* borders;
  void (*items)(const StateSpaceForwardCall&, int64_t, int64_t, float*);
  int64_t scratch_size = 0;
  float* scratch = nullptr;
};

struct StateSpaceBackwardCall {
  DiagonalScanProblem problem;
  DiagonalStateSpaceInputs inputs;
  const float* borders;
  Rows<const float> dy;
  const float* const* dfinal;
  DiagonalStateSpaceGradients gradients;
  void (*items)(const StateSpaceBackwardCall&, int64_t, int64_t, float*);
  int64_t scratch_size = 0;
  float* scratch = nullptr;
};

}  // namespace tarn::kernels
