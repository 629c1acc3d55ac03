#pragma once

#include <ATen/core/Tensor.h>

#include "train/batches.h"

namespace tarn::train {

/// Σ −log p(labels) in nats over the sequences of a packed batch under head outputs [rows, classes]
/// (connectionist temporal classification, Graves 2006; libtorch's). `gradient` (nullable, same shape)
/// receives d total / d outputs times `gradient_scale`. A sequence with fewer rows than its labels need
/// counts 0 and has no gradient.
double ctc_nats(const Batch& batch, const at::Tensor& outputs, double gradient_scale,
                float* gradient);

}  // namespace tarn::train
