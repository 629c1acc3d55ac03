#include "train/ctc_loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/ctc_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

namespace tarn::train {
namespace {

/// Calls body(packed, padded) with the offsets of a row in [rows, classes] and in [time, sequence,
/// classes].
template <class Body>
void for_rows(const Batch& batch, int64_t classes, const Body& body) {
  int64_t row = 0;
  for (int64_t i = 0; i < batch.count; ++i) {
    for (int64_t t = 0; t < batch.lengths[static_cast<size_t>(i)]; ++t) {
      body(row++ * classes, (t * batch.count + i) * classes);
    }
  }
}

}  // namespace

double ctc_nats(const Batch& batch, const at::Tensor& outputs, double gradient_scale,
                float* gradient) {
  const int64_t classes = outputs.size(1);
  const int64_t longest = *std::max_element(batch.lengths.begin(), batch.lengths.end());
  at::Tensor logits = at::zeros({longest, batch.count, classes}, at::kDouble);
  const float* from = outputs.const_data_ptr<float>();
  double* to = logits.mutable_data_ptr<double>();
  for_rows(batch, classes, [&](int64_t packed, int64_t padded) {
    std::copy_n(from + packed, classes, to + padded);
  });
  std::vector<int64_t> labels, label_lengths;
  for (const std::vector<int32_t>& sequence : batch.labels) {
    labels.insert(labels.end(), sequence.begin(), sequence.end());
    label_lengths.push_back(static_cast<int64_t>(sequence.size()));
  }
  const c10::AutoGradMode with_gradients(gradient != nullptr);
  logits.set_requires_grad(gradient != nullptr);
  const at::Tensor loss = at::ctc_loss(at::log_softmax(logits, 2), at::tensor(labels),
                                       batch.lengths, label_lengths, 0, at::Reduction::Sum, true);
  if (gradient != nullptr) {
    loss.backward();
    const at::Tensor slopes = logits.grad().contiguous();
    const double* slope = slopes.const_data_ptr<double>();
    for_rows(batch, classes, [&](int64_t packed, int64_t padded) {
      for (int64_t c = 0; c < classes; ++c) {
        gradient[packed + c] = static_cast<float>(gradient_scale * slope[padded + c]);
      }
    });
  }
  return loss.item<double>();
}

}  // namespace tarn::train
