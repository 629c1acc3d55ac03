#include "train/muon.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tarn::train {
namespace {

constexpr int kSteps = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

/// One matrix to update: rows of a parameter.
struct Matrix {
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  bool decays = false;
};

std::vector<Matrix> muon_matrices(const ParameterBuffers& parameters) {
  std::vector<Matrix> matrices;
  for (const ParameterBuffers::Entry& entry : parameters.entries) {
    if (!is_muon_matrix(entry.spec)) continue;
    std::vector<int64_t> blocks = entry.spec.row_blocks;
    if (blocks.empty()) blocks.push_back(entry.spec.shape[0]);
    int64_t offset = entry.offset;
    for (const int64_t rows : blocks) {
      matrices.push_back({offset, rows, entry.spec.shape[1], entry.spec.weight_decay});
      offset += rows * entry.spec.shape[1];
    }
  }
  return matrices;
}

}  // namespace

bool is_muon_matrix(const mixers::ParamSpec& spec) {
  return spec.shape.size() == 2 && spec.name.starts_with("layers.");
}

void orthogonalise(int64_t rows, int64_t columns, DType precision, float* matrix) {
  const c10::InferenceMode no_gradients;
  const at::Tensor view = at::from_blob(matrix, {rows, columns});
  double sum = 0.0;
  for (int64_t i = 0; i < rows * columns; ++i) {
    sum += static_cast<double>(matrix[i]) * static_cast<double>(matrix[i]);
  }
  if (sum == 0.0) return;
  at::Tensor x = (rows > columns ? view.t() : view) / std::sqrt(sum);
  x = x.to(precision == DType::kBF16 ? at::kBFloat16 : at::kFloat).contiguous();
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor a = at::mm(x, x.t());
    const at::Tensor b = at::addmm(a, a, a, kB, kC);
    x = at::addmm(x, b, x, kA, 1.0);
  }
  view.copy_(rows > columns ? x.t() : x);
}

void muon_update(const OptimiserConfig& config, double factor, double gradient_scale,
                 DType precision, ParameterBuffers& parameters, Buffer<float>& momentum,
                 ThreadPool* pool) {
  const std::vector<Matrix> matrices = muon_matrices(parameters);
  const double rate = config.matrix_learning_rate * factor;
  const auto mu = static_cast<float>(config.momentum);
  const auto scale = static_cast<float>(gradient_scale);
  const auto update_matrix = [&](const Matrix& matrix) {
    const int64_t size = matrix.rows * matrix.columns;
    const float* gradient = parameters.gradients.data() + matrix.offset;
    float* m = momentum.data() + matrix.offset;
    float* w = parameters.values.data() + matrix.offset;
    Buffer<float> change(size);
    for (int64_t i = 0; i < size; ++i) {
      const float g = gradient[i] * scale;
      m[i] = mu * m[i] + g;
      change[i] = g + mu * m[i];
    }
    orthogonalise(matrix.rows, matrix.columns, precision, change.data());
    const double ratio = static_cast<double>(matrix.rows) / static_cast<double>(matrix.columns);
    const auto step = static_cast<float>(rate * std::sqrt(std::max(1.0, ratio)));
    const auto keep = matrix.decays ? static_cast<float>(1.0 - rate * config.weight_decay) : 1.0f;
    for (int64_t i = 0; i < size; ++i) w[i] = keep * w[i] - step * change[i];
  };
  const auto count = static_cast<int64_t>(matrices.size());
  parallel_for(pool, count, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) update_matrix(matrices[static_cast<size_t>(i)]);
  });
}

}  // namespace tarn::train
