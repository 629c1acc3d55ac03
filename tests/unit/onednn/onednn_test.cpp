#include "onednn/onednn.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/gemm.h"
#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::kEps;
using testing::TestRows;

class OneDnn : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { onednn::install(); }

  static void check(int64_t rows, int64_t out_dim, int64_t in_dim, bool with_bias,
                    Activation activation, bool accumulate, ThreadPool* pool) {
    SCOPED_TRACE(::testing::Message() << rows << " rows, " << in_dim << " -> " << out_dim);
    std::vector<float> weight;
    const TestRows source = TestRows::uniform(out_dim, in_dim, 1);
    for (int64_t n = 0; n < out_dim; ++n) {
      weight.insert(weight.end(), source.row(n), source.row(n) + in_dim);
    }
    const TestRows bias = TestRows::uniform(1, out_dim, 2);
    const TestRows x = TestRows::uniform(rows, in_dim, 3);
    TestRows out = accumulate ? TestRows::uniform(rows, out_dim, 4) : TestRows(rows, out_dim);
    const TestRows old = out;
    const PackedMatrix matrix =
        PackedMatrix::pack(weight.data(), with_bias ? bias.data() : nullptr, out_dim, in_dim,
                           {.backend = GemmBackend::kOneDnn});
    matrix.multiply(rows, x.data(), x.stride(), out.data(), out.stride(), activation, accumulate,
                    pool);
    EXPECT_TRUE(out.padding_is_intact());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = 0; n < out_dim; ++n) {
        double sum = (with_bias ? bias.row(0)[n] : 0.0) + (accumulate ? old.row(r)[n] : 0.0);
        double magnitude = std::abs(sum) + 2.0;
        for (int64_t k = 0; k < in_dim; ++k) {
          const double term = static_cast<double>(x.row(r)[k]) * weight[n * in_dim + k];
          sum += term;
          magnitude += std::abs(term);
        }
        // oneDNN's activations are good to a few 1e-6 of their argument.
        const double own = activation == Activation::kNone ? 0.0 : 16.0 * kEps * magnitude;
        ASSERT_NEAR(out.row(r)[n], reference::activation(activation, sum),
                    kEps * (std::sqrt(static_cast<double>(in_dim)) + 4.0) * magnitude + own);
      }
    }
  }
};

TEST_F(OneDnn, ReportsItsVersion) {
  const std::string version = onednn_version();
  EXPECT_EQ(std::count(version.begin(), version.end(), '.'), 2) << version;
}

TEST_F(OneDnn, MatchesDoubleReference) {
  for (int64_t rows : {0, 1, 3, 17, 64}) {
    check(rows, 33, 72, true, Activation::kNone, false, nullptr);
    check(rows, 128, 96, false, Activation::kNone, true, nullptr);
    check(rows, 1, 300, true, Activation::kNone, false, nullptr);
    check(rows, 30, 1, true, Activation::kNone, true, nullptr);
    check(rows, 5, 0, true, Activation::kRelu, false, nullptr);
  }
}

TEST_F(OneDnn, FusesActivations) {
  for (Activation activation :
       {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    check(9, 70, 33, true, activation, false, nullptr);
  }
}

TEST_F(OneDnn, UsesThePool) {
  ThreadPool pool(3);
  check(100, 256, 128, true, Activation::kGelu, false, &pool);
  check(100, 256, 128, true, Activation::kNone, true, &pool);
}

}  // namespace
}  // namespace tarn::kernels
