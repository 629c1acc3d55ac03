#include "train/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "train/optimiser.h"
#include "train/torch_threads.h"

namespace tarn::train {
namespace {

using Values = std::vector<double>;

std::vector<float> random_matrix(int64_t size, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(size));
  Philox random{6, stream};
  for (float& value : values) value = random.next_normal();
  return values;
}

/// a·b, [m, k]·[k, n].
Values product(const Values& a, const Values& b, size_t m, size_t k, size_t n) {
  Values out(m * n, 0.0);
  for (size_t i = 0; i < m; ++i) {
    for (size_t p = 0; p < k; ++p) {
      for (size_t j = 0; j < n; ++j) out[i * n + j] += a[i * k + p] * b[p * n + j];
    }
  }
  return out;
}

Values transposed(const Values& a, size_t m, size_t n) {
  Values out(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) out[j * m + i] = a[i * n + j];
  }
  return out;
}

/// Five Newton–Schulz steps in double, without the transposition of tall matrices.
Values reference(const std::vector<float>& matrix, size_t rows, size_t columns) {
  Values x(matrix.begin(), matrix.end());
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  for (double& value : x) value /= std::sqrt(sum);
  for (int step = 0; step < 5; ++step) {
    const Values a = product(x, transposed(x, rows, columns), rows, columns, rows);
    const Values ax = product(a, x, rows, rows, columns);
    const Values aax = product(a, ax, rows, rows, columns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.775 * ax[i] + 2.0315 * aax[i];
  }
  return x;
}

TEST(Orthogonalise, FollowsTheIterationInDouble) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 9}, {7, 1}, {16, 16}, {24, 40}, {40, 24}}) {
    std::vector<float> matrix = random_matrix(rows * columns, static_cast<uint64_t>(rows));
    const Values expected =
        reference(matrix, static_cast<size_t>(rows), static_cast<size_t>(columns));
    orthogonalise(rows, columns, DType::kF32, matrix.data());
    // Each step multiplies an error by at most 3.4445 and adds a few roundings of sums of
    // max(rows, columns) terms of order one.
    const double tolerance = 64.0 * std::pow(3.4445, 5) * std::numeric_limits<float>::epsilon();
    for (size_t i = 0; i < matrix.size(); ++i) {
      EXPECT_NEAR(matrix[i], expected[i], tolerance) << rows << "x" << columns << " at " << i;
    }
  }
}

TEST(Orthogonalise, SingularValuesComeNearOne) {
  // UUᵀ of a wide matrix has the squared singular values as eigenvalues; every direction is within.
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    constexpr int64_t kRows = 24, kColumns = 64;
    std::vector<float> matrix = random_matrix(kRows * kColumns, 3);
    orthogonalise(kRows, kColumns, precision, matrix.data());
    const Values u(matrix.begin(), matrix.end());
    const Values square = product(u, transposed(u, kRows, kColumns), kRows, kColumns, kRows);
    for (uint64_t trial = 0; trial < 50; ++trial) {
      const std::vector<float> v = random_matrix(kRows, 100 + trial);
      double length = 0.0, stretched = 0.0;
      for (size_t i = 0; i < v.size(); ++i) {
        length += static_cast<double>(v[i]) * static_cast<double>(v[i]);
        for (size_t j = 0; j < v.size(); ++j) {
          stretched +=
              static_cast<double>(v[i]) * square[i * v.size() + j] * static_cast<double>(v[j]);
        }
      }
      const double stretch = std::sqrt(stretched / length);
      EXPECT_GT(stretch, 0.65);
      EXPECT_LT(stretch, 1.25);
    }
  }
}

TEST(Orthogonalise, LeavesZeroAlone) {
  std::vector<float> matrix(12, 0.0f);
  orthogonalise(3, 4, DType::kF32, matrix.data());
  EXPECT_EQ(matrix, std::vector<float>(12, 0.0f));
}

/// A stack of two matrices, a bias, an embedding.
ParameterBuffers some_parameters() {
  ParameterBuffers parameters;
  parameters.entries.push_back({{"layers.0.mixer.in.weight", {20, 8}, {}, true, {8, 12}}, 0, 160});
  parameters.entries.push_back({{"layers.0.mixer.in.bias", {20}, {}, false}, 160, 20});
  parameters.entries.push_back({{"embedding.token.weight", {5, 8}, {}, false}, 192, 40});
  parameters.values = Buffer<float>::filled(240, 0.0f);
  parameters.gradients = Buffer<float>::filled(240, 0.0f);
  const std::vector<float> values = random_matrix(240, 1), gradients = random_matrix(240, 2);
  for (const auto& entry : parameters.entries) {
    for (int64_t i = entry.offset; i < entry.offset + entry.size; ++i) {
      parameters.values[i] = values[static_cast<size_t>(i)];
      parameters.gradients[i] = gradients[static_cast<size_t>(i)];
    }
  }
  return parameters;
}

TEST(Muon, UpdatesMatricesByTheDefinitionAndLeavesTheRestToAdamW) {
  OptimiserConfig config;
  config.kind = OptimiserKind::kMuon;
  config.weight_decay = 0.1;
  ParameterBuffers parameters = some_parameters();
  ParameterBuffers adamw = some_parameters();
  Optimiser optimiser(config, parameters);
  OptimiserConfig adamw_config = config;
  adamw_config.kind = OptimiserKind::kAdamW;
  Optimiser other(adamw_config, adamw);
  Values w(parameters.values.span().begin(), parameters.values.span().end());
  Values m(160, 0.0);
  const double factor = 0.5, scale = 0.25;
  for (int t = 0; t < 3; ++t) {
    const std::vector<float> gradients = random_matrix(240, 10 + static_cast<uint64_t>(t));
    for (const auto& entry : parameters.entries) {
      for (int64_t i = entry.offset; i < entry.offset + entry.size; ++i) {
        parameters.gradients[i] = adamw.gradients[i] = gradients[static_cast<size_t>(i)];
      }
    }
    for (const auto& [first, rows] : {std::pair<size_t, size_t>{0, 8}, {64, 12}}) {
      std::vector<float> change;
      for (size_t i = first; i < first + rows * 8; ++i) {
        const double g = scale * static_cast<double>(gradients[i]);
        m[i] = config.momentum * m[i] + g;
        change.push_back(static_cast<float>(g + config.momentum * m[i]));
      }
      const Values u = reference(change, rows, 8);
      const double rate = config.matrix_learning_rate * factor;
      for (size_t i = 0; i < u.size(); ++i) {
        w[first + i] = (1.0 - rate * config.weight_decay) * w[first + i] -
                       rate * std::sqrt(std::max(1.0, static_cast<double>(rows) / 8.0)) * u[i];
      }
    }
    optimiser.update(factor, scale, parameters, nullptr);
    other.update(factor, scale, adamw, nullptr);
  }
  for (size_t i = 0; i < 160; ++i) {
    EXPECT_NEAR(parameters.values[static_cast<int64_t>(i)], w[i], 1e-4) << i;
    EXPECT_NE(parameters.values[static_cast<int64_t>(i)], adamw.values[static_cast<int64_t>(i)]);
  }
  for (int64_t i = 160; i < 240; ++i) EXPECT_EQ(parameters.values[i], adamw.values[i]) << i;
}

TEST(Muon, BitsDoNotDependOnThreads) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    std::vector<float> first;
    for (const int threads : {1, 2}) {
      const auto pool = torch_thread_pool(threads);
      OptimiserConfig config;
      config.kind = OptimiserKind::kMuon;
      ParameterBuffers parameters;
      int64_t offset = 0;
      for (const auto& [rows, columns] :
           std::vector<std::pair<int64_t, int64_t>>{{384, 128}, {512, 128}, {128, 512}, {24, 8}}) {
        parameters.entries.push_back(
            {{"layers.0.w", {rows, columns}, {}, true}, offset, rows * columns});
        offset += rows * columns;
      }
      parameters.values = Buffer<float>::filled(offset, 0.0f);
      parameters.gradients = Buffer<float>::filled(offset, 0.0f);
      std::ranges::copy(random_matrix(offset, 5), parameters.gradients.data());
      Optimiser optimiser(config, parameters, precision);
      for (int t = 0; t < 2; ++t) optimiser.update(1.0, 1.0, parameters, pool.get());
      const std::vector<float> bits(parameters.values.span().begin(),
                                    parameters.values.span().end());
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first);
    }
  }
}

}  // namespace
}  // namespace tarn::train
