#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/part_times.h"
#include "base/threads.h"
#include "kernels/activation.h"
#include "mixers/common/trained_linear.h"

namespace tarn::train {

/// The parts of a decoder around its mixers, each one node of the graph: forward and backward call
/// our kernels on whole rows. Gradients of parameters (leaves that have gradients already) are added
/// in place; only those of activations go through autograd. Bits do not depend on the pool.

/// Where the nodes run, and who wants to know for how long (null: nobody).
struct Execution {
  ThreadPool* pool = nullptr;
  PartTimes* times = nullptr;
};

/// Row b·length + t of the result [count, length, dim]: row inputs[b, t] of tables[0], plus position
/// row t, plus for each lag row inputs[b, t − lag] of its table (start_token where t < lag).
struct EmbeddingArgs {
  int64_t count = 0;
  int64_t length = 0;
  const int32_t* inputs = nullptr;  ///< [count, length]; read by backward too
  int32_t start_token = 0;
  std::vector<int64_t> lags;
  std::vector<at::Tensor> tables;  ///< tokens, then one per lag: [vocabulary, dim]
  at::Tensor position;  ///< [at least length, dim], or undefined; a leaf if it is learned
};
at::Tensor embedding(const EmbeddingArgs& args, const Execution& execution);

/// Layer norm, or RMS norm where `bias` is undefined, of the rows of x.
at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, float eps,
                const Execution& execution);

/// A linear map whose weight [out, in] and bias [out] are leaves with gradients.
mixers::TrainedLinear linear_map(const at::Tensor& weight, const at::Tensor& bias,
                                 DType precision = DType::kF32);

/// residual + down(f(up(x))); `residual` may be x itself.
at::Tensor mlp(const at::Tensor& x, const at::Tensor& residual, const mixers::TrainedLinear& up,
               kernels::Activation activation, const mixers::TrainedLinear& down,
               const Execution& execution);

/// x·Wᵀ + b as [rows, out]: the head.
at::Tensor linear(const at::Tensor& x, const mixers::TrainedLinear& map,
                  const Execution& execution);

}  // namespace tarn::train
