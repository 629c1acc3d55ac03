#pragma once

#include <cstdint>

#include "base/threads.h"
#include "model/config.h"

namespace tarn::train {

inline constexpr int32_t kNotCounted = -1;  ///< target of a row that does not count in the loss

/// Total negative log-likelihood, in nats, of `targets` [rows] under head outputs
/// [rows, head.output_dim()]: cross-entropy or logistic mixture, as the head says. `gradient`
/// (nullable, same shape) receives d total / d outputs times `gradient_scale`; rows that do not
/// count get zeros. Rows are independent and the sum is taken in row order: the same bits for any
/// thread count. One pass: outputs are read once, gradients written once.
double head_loss(const model::HeadConfig& head, int64_t rows, const float* outputs,
                 const int32_t* targets, double gradient_scale, float* gradient, ThreadPool* pool);

}  // namespace tarn::train
