#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "train/config.h"
#include "train/parameters.h"

namespace tarn::train {

/// AdamW (Loshchilov 2019, arXiv 1711.05101) and RAdam (Liu 2020, arXiv 1908.03265; the variance
/// term has eps inside as torch.optim.RAdam) over flat buffers, both with decoupled weight decay
/// on the parameters whose table row wants it; with kMuon, Muon for the layers' matrices (muon.h)
/// and AdamW for the rest. Moments are f32, constants double.
class Optimiser {
 public:
  /// `precision`: of Muon's matrix products.
  Optimiser(const OptimiserConfig& config, const ParameterBuffers& parameters,
            DType precision = DType::kF32);

  /// One update with gradients·gradient_scale at `factor` times the config's learning rates.
  /// The result does not depend on the thread count.
  void update(double factor, double gradient_scale, ParameterBuffers& parameters, ThreadPool* pool);

  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  Buffer<float>& first_moment() { return first_moment_; }
  Buffer<float>& second_moment() { return second_moment_; }

 private:
  OptimiserConfig config_;
  DType precision_;
  int64_t updates_ = 0;
  Buffer<float> first_moment_;
  Buffer<float> second_moment_;
};

}  // namespace tarn::train
