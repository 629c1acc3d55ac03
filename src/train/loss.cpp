#include "train/loss.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "train/logistic_mixture.h"

namespace tarn::train {
namespace {

/// −log softmax(logits)[target] and its gradient.
double categorical_nats(const float* logits, int64_t classes, int64_t target, double scale,
                        float* gradient) {
  const float largest = *std::max_element(logits, logits + classes);
  double sum = 0.0;
  if (gradient == nullptr) {
    for (int64_t i = 0; i < classes; ++i) sum += std::exp(logits[i] - largest);
  } else {
    for (int64_t i = 0; i < classes; ++i) {
      gradient[i] = std::exp(logits[i] - largest);
      sum += gradient[i];
    }
    const auto factor = static_cast<float>(scale / sum);
    for (int64_t i = 0; i < classes; ++i) gradient[i] *= factor;
    gradient[target] -= static_cast<float>(scale);
  }
  return std::log(sum) - (static_cast<double>(logits[target]) - static_cast<double>(largest));
}

}  // namespace

double head_loss(const model::HeadConfig& head, int64_t rows, const float* outputs,
                 const int32_t* targets, double gradient_scale, float* gradient, ThreadPool* pool) {
  const int64_t width = head.output_dim();
  std::vector<double> nats(static_cast<size_t>(rows));
  parallel_for(pool, rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const float* output = outputs + row * width;
      float* row_gradient = gradient == nullptr ? nullptr : gradient + row * width;
      double& value = nats[static_cast<size_t>(row)];
      if (targets[row] == kNotCounted) {
        if (row_gradient != nullptr) std::fill_n(row_gradient, width, 0.0f);
      } else if (head.kind == model::HeadKind::kCategorical) {
        value = categorical_nats(output, width, targets[row], gradient_scale, row_gradient);
      } else {
        value = logistic_mixture_nats(output, head.components, targets[row], head.classes,
                                      gradient_scale, row_gradient);
      }
    }
  });
  double total = 0.0;
  for (const double value : nats) total += value;
  return total;
}

}  // namespace tarn::train
