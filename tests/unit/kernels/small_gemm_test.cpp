#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "unit/kernels/small_gemm_test.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/small_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tarn::kernels {
namespace HWY_NAMESPACE {

void run_small_gemm(int64_t rows, int64_t columns, int64_t depth, const float* a,
                    int64_t a_row_stride, int64_t a_column_stride, const float* b, int64_t b_stride,
                    float* c, int64_t c_stride, bool accumulate) {
  small_gemm(rows, columns, depth, {a, a_row_stride, a_column_stride}, b, b_stride, c, c_stride,
             accumulate);
}

void run_exp_nonpositive(int64_t size, float* x) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const Tail tail(std::min(kLanes, size - i));
    store_partial(exp_nonpositive(load_partial(x + i, tail)), x + i, tail);
  }
}

const char* compiled_for() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace tarn::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/targets.h"

namespace tarn::kernels {
namespace {

HWY_EXPORT(run_small_gemm);
HWY_EXPORT(run_exp_nonpositive);
HWY_EXPORT(compiled_for);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = static_cast<double>(std::numeric_limits<float>::epsilon());

template <class Body>
void for_each_target(const Body& body) {
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE("target " + target);
    ASSERT_TRUE(force_target(target));
    body();
  }
  ASSERT_TRUE(force_target(""));
}

struct Product {
  Product(int64_t rows_in, int64_t columns_in, int64_t depth_in, bool transposed)
      : rows(rows_in),
        columns(columns_in),
        depth(depth_in),
        a_row_stride(transposed ? 1 : depth + 2),
        a_column_stride(transposed ? rows + 1 : 1),
        a((rows + 2) * (depth + 2), kNan),
        b(1 + depth * (columns + 3), kNan),
        c(1 + rows * (columns + 5), kNan) {
    Philox random{.seed = 3};
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < depth; ++k) {
        a[i * a_row_stride + k * a_column_stride] = random.next_normal();
      }
    }
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t j = 0; j < columns; ++j) b[1 + k * (columns + 3) + j] = random.next_normal();
    }
  }
  float& at(int64_t i, int64_t j) { return c[1 + i * (columns + 5) + j]; }
  void multiply(int64_t some_rows, bool accumulate) {
    HWY_DYNAMIC_DISPATCH(run_small_gemm)
    (some_rows, columns, depth, a.data(), a_row_stride, a_column_stride, b.data() + 1, columns + 3,
     c.data() + 1, columns + 5, accumulate);
  }

  int64_t rows, columns, depth, a_row_stride, a_column_stride;
  std::vector<float> a, b, c;
};

void check(int64_t rows, int64_t columns, int64_t depth, bool transposed, bool accumulate) {
  SCOPED_TRACE(testing::Message() << rows << "x" << columns << "x" << depth);
  Product p(rows, columns, depth, transposed);
  for (int64_t i = 0; accumulate && i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) p.at(i, j) = static_cast<float>(i - j);
  }
  p.multiply(rows, accumulate);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double want = accumulate ? static_cast<double>(i - j) : 0.0;
      double magnitude = std::abs(want);
      for (int64_t k = 0; k < depth; ++k) {
        const double term = static_cast<double>(p.a[i * p.a_row_stride + k * p.a_column_stride]) *
                            static_cast<double>(p.b[1 + k * (columns + 3) + j]);
        want += term;
        magnitude += std::abs(term);
      }
      const double bound = kEps * std::sqrt(static_cast<double>(depth) + 1) * magnitude;
      ASSERT_NEAR(static_cast<double>(p.at(i, j)), want, bound) << i << "," << j;
    }
    for (int64_t j = columns; j < columns + 4 && i + 1 < rows; ++j) {
      ASSERT_TRUE(std::isnan(p.at(i, j))) << "written past row " << i;
    }
  }
}

TEST(SmallGemm, MatchesDoublePrecision) {
  for_each_target([] {
    for (int64_t rows : {1, 2, 5, 6, 7, 13, 64}) {
      for (int64_t columns : {1, 3, 16, 17, 33, 64, 65, 100}) {
        for (int64_t depth : {0, 1, 3, 64}) {
          for (bool transposed : {false, true}) {
            check(rows, columns, depth, transposed, depth % 2 == 0);
          }
        }
      }
    }
    check(300, 300, 7, true, false);
  });
}

TEST(SmallGemm, ARowsBitsDoNotDependOnTheOthers) {
  for_each_target([] {
    Product whole(13, 37, 50, false);
    whole.multiply(13, false);
    for (int64_t rows = 1; rows < 13; ++rows) {
      Product part(13, 37, 50, false);
      part.multiply(rows, false);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < 37; ++j) ASSERT_EQ(part.at(i, j), whole.at(i, j));
      }
    }
  });
}

TEST(ExpNonpositive, IsWithinTwoUlpAndFlushesToZero) {
  for_each_target([] {
    std::vector<float> x;
    for (int i = 0; i <= 100000; ++i) x.push_back(-0.00086f * static_cast<float>(i));
    const std::vector<float> input = x;
    HWY_DYNAMIC_DISPATCH(run_exp_nonpositive)(static_cast<int64_t>(x.size()), x.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(input[i]));
      ASSERT_NEAR(static_cast<double>(x[i]), want, 2 * kEps * want) << input[i];
    }
    std::vector<float> special = {-0.0f,
                                  -87.5f,
                                  -1000.0f,
                                  -std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::max(),
                                  kNan};
    HWY_DYNAMIC_DISPATCH(run_exp_nonpositive)(6, special.data());
    EXPECT_EQ(special[0], 1.0f);
    for (int i = 1; i < 5; ++i) EXPECT_EQ(special[i], 0.0f);
    EXPECT_TRUE(std::isnan(special[5]));
  });
}

TEST(ForceTarget, IsWhatDispatchTakes) {
  for (const std::string& target : supported_targets()) {
    ASSERT_TRUE(force_target(target));
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(compiled_for)(), target);
  }
  ASSERT_TRUE(force_target(""));
  EXPECT_EQ(HWY_DYNAMIC_DISPATCH(compiled_for)(), supported_targets().front());
}

}  // namespace
}  // namespace tarn::kernels

#endif  // HWY_ONCE
