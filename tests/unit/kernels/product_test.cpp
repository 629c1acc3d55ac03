#include "kernels/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/product_kernels.h"
#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::for_each_target;
using testing::kEps;
using testing::TestRows;

/// The value that an operand stands for in a product of that format.
double in_format(float value, DType format) {
  return format == DType::kBF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

struct Shape {
  int64_t rows, depth, columns;
};
constexpr Shape kShapes[] = {{0, 5, 3},    {1, 1, 1},     {1, 7, 33},   {11, 32, 32}, {13, 33, 31},
                             {25, 64, 96}, {40, 129, 70}, {7, 600, 40}, {300, 24, 5}, {12, 0, 9}};

/// B with its rows as `layout` has them in memory.
float element(const TestRows& b, Layout layout, int64_t k, int64_t n) {
  return layout == Layout::kPlain ? b.row(k)[n] : b.row(n)[k];
}

void check_product(DType format, Layout layout, const Shape& shape, bool relu, bool addend,
                   bool gate) {
  SCOPED_TRACE(::testing::Message() << dtype_name(format) << " " << shape.rows << "x" << shape.depth
                                    << "x" << shape.columns << (relu ? " relu" : "")
                                    << (addend ? " addend" : "") << (gate ? " gate" : ""));
  const bool plain = layout == Layout::kPlain;
  const TestRows a = TestRows::uniform(shape.rows, shape.depth, 1);
  const TestRows b = TestRows::uniform(plain ? shape.depth : shape.columns,
                                       plain ? shape.columns : shape.depth, 2);
  const TestRows bias = TestRows::uniform(1, shape.columns, 3);
  const TestRows other = TestRows::uniform(shape.rows, shape.columns, 4);
  TestRows out(shape.rows, shape.columns);
  Arena arena;
  RowProduct product;
  product.rows = shape.rows;
  product.a = a.data();
  product.a_stride = a.stride();
  product.bias = bias.data();
  if (addend) product.addend = other.data();
  if (gate) product.gate = other.data();
  product.addend_stride = product.gate_stride = other.stride();
  product.relu = relu;
  product.out = out.data();
  product.out_stride = out.stride();
  multiply_rows(pack_operand(format, layout, b.data(), b.stride(), shape.depth, shape.columns,
                             nullptr, arena),
                product);
  EXPECT_TRUE(out.padding_is_intact());
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t n = 0; n < shape.columns; ++n) {
      double wanted = bias.row(0)[n] + (addend ? other.row(r)[n] : 0.0f);
      double sizes = std::abs(wanted);
      for (int64_t k = 0; k < shape.depth; ++k) {
        const double term =
            in_format(a.row(r)[k], format) * in_format(element(b, layout, k, n), format);
        wanted += term;
        sizes += std::abs(term);
      }
      // A chain of `depth` additions, each with half an eps of a partial sum ≤ sizes.
      const double tolerance = kEps * (3.0 + static_cast<double>(shape.depth)) * sizes;
      if (relu) wanted = std::max(wanted, 0.0);
      if (gate && !(other.row(r)[n] > 0.0f)) wanted = 0.0;
      ASSERT_NEAR(out.row(r)[n], wanted, tolerance) << "row " << r << " column " << n;
    }
  }
}

TEST(Product, MatchesDouble) {
  for_each_target([&] {
    for (const DType format : {DType::kF32, DType::kBF16}) {
      for (const Layout layout : {Layout::kPlain, Layout::kTransposed}) {
        for (const Shape& shape : kShapes) {
          check_product(format, layout, shape, false, false, false);
          check_product(format, layout, shape, true, false, false);
          check_product(format, layout, shape, false, true, true);
        }
      }
    }
  });
}

TEST(Product, RowsDependOnNeitherOtherRowsNorThreads) {
  const TestRows a = TestRows::uniform(101, 50, 1);
  const TestRows b = TestRows::uniform(50, 45, 2);
  for (const DType format : {DType::kF32, DType::kBF16}) {
    Arena arena;
    const PackedOperand packed =
        pack_operand(format, Layout::kPlain, b.data(), b.stride(), 50, 45, nullptr, arena);
    TestRows whole(101, 45), alone(1, 45);
    RowProduct product;
    product.rows = 101;
    product.a = a.data();
    product.a_stride = a.stride();
    product.out = whole.data();
    product.out_stride = whole.stride();
    ThreadPool pool(3);
    multiply_rows(packed, product, &pool);
    for (int64_t r = 0; r < 101; ++r) {
      RowProduct one = rows_of(product, r, r + 1);
      one.out = alone.data();
      multiply_rows(packed, one);
      for (int64_t n = 0; n < 45; ++n) ASSERT_EQ(alone.row(0)[n], whole.row(r)[n]) << r;
    }
  }
}

TEST(Product, WeightGradientMatchesDoubleAndAddsUp) {
  for_each_target([&] {
    for (const DType format : {DType::kF32, DType::kBF16}) {
      // Rows beyond one block of the sum, odd numbers of rows, tiles of every height.
      for (const auto& [rows, out_dim, in_dim] :
           {Shape{0, 3, 4}, Shape{1, 1, 1}, Shape{513, 13, 33}, Shape{1031, 100, 7},
            Shape{30, 97, 300}}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(format) << " " << rows << " rows");
        const TestRows dy = TestRows::uniform(rows, out_dim, 5);
        const TestRows x = TestRows::uniform(rows, in_dim, 6);
        std::vector<float> dweight(static_cast<size_t>(out_dim * in_dim), 0.5f);
        std::vector<float> dbias(static_cast<size_t>(out_dim), -0.25f);
        WeightGradient gradient{format,      rows,     out_dim,    in_dim,         dy.data(),
                                dy.stride(), x.data(), x.stride(), dweight.data(), dbias.data()};
        add_weight_gradient(gradient, nullptr);
        for (int64_t m = 0; m < out_dim; ++m) {
          double bias = -0.25, bias_sizes = 0.25;
          for (int64_t r = 0; r < rows; ++r) {
            bias += dy.row(r)[m];
            bias_sizes += std::abs(dy.row(r)[m]);
          }
          const double steps = 4.0 + static_cast<double>(rows);
          ASSERT_NEAR(dbias[static_cast<size_t>(m)], bias, kEps * steps * bias_sizes);
          for (int64_t n = 0; n < in_dim; ++n) {
            double wanted = 0.5, sizes = 0.5;
            for (int64_t r = 0; r < rows; ++r) {
              const double term = in_format(dy.row(r)[m], format) * in_format(x.row(r)[n], format);
              wanted += term;
              sizes += std::abs(term);
            }
            ASSERT_NEAR(dweight[static_cast<size_t>(m * in_dim + n)], wanted, kEps * steps * sizes);
          }
        }
        std::vector<float> threaded(dweight.size(), 0.5f), threaded_bias(dbias.size(), -0.25f);
        gradient.dweight = threaded.data();
        gradient.dbias = threaded_bias.data();
        ThreadPool pool(3);
        add_weight_gradient(gradient, &pool);
        EXPECT_EQ(threaded, dweight);
        EXPECT_EQ(threaded_bias, dbias);
      }
    }
  });
}

std::vector<const Bf16ProductKernels*> all_kernels() {
  std::vector<const Bf16ProductKernels*> kernels{&generic_bf16_product_kernels()};
  if (avx512_bf16_product_kernels() != nullptr) kernels.push_back(avx512_bf16_product_kernels());
  return kernels;
}

TEST(Bf16Product, RoundsToNearestEvenAndPairsUp) {
  const std::vector<float> x = {1.0f,      1.00390625f, 1.01171875f,
                                -3.14159f, 65535.0f,    std::numeric_limits<float>::infinity(),
                                0.1f,      -0.0f,       2.5f};
  for (const Bf16ProductKernels* kernels : all_kernels()) {
    SCOPED_TRACE(kernels->name);
    for (int64_t count = 0; count <= 9; ++count) {
      const auto bits = [&](int64_t i) {
        return i < count ? uint32_t{f32_to_bf16(x[static_cast<size_t>(i)])} : 0u;
      };
      std::vector<uint32_t> row(6, 77);
      kernels->round_row(count, x.data(), row.data());
      for (int64_t u = 0; u < 6; ++u) {
        const uint32_t wanted = 2 * u < count ? bits(2 * u + 1) << 16 | bits(2 * u) : 77;
        ASSERT_EQ(row[static_cast<size_t>(u)], wanted) << count << " values, unit " << u;
      }
    }
    // Three rows of two columns in units of width 5.
    std::vector<uint32_t> pairs(11, 77);
    kernels->round_pairs(3, 2, x.data(), 3, pairs.data(), 5);
    const auto at = [&](size_t r, size_t i) { return uint32_t{f32_to_bf16(x[3 * r + i])}; };
    const std::vector<uint32_t> wanted = {at(1, 0) << 16 | at(0, 0),
                                          at(1, 1) << 16 | at(0, 1),
                                          0,
                                          0,
                                          0,
                                          at(2, 0),
                                          at(2, 1),
                                          0,
                                          0,
                                          0,
                                          77};
    EXPECT_EQ(pairs, wanted);
    std::vector<uint32_t> nan(1);
    const float not_a_number = std::numeric_limits<float>::quiet_NaN();
    kernels->round_pairs(1, 1, &not_a_number, 0, nan.data(), 1);
    EXPECT_TRUE(std::isnan(bf16_to_f32(static_cast<uint16_t>(nan[0]))));
  }
}

TEST(Bf16Product, TilesOfEveryHeightMatchDouble) {
  constexpr int64_t kUnits = 19;
  const TestRows values = TestRows::uniform(kProductRows + kProductColumns, 2 * kUnits, 8);
  const auto unit = [&](int64_t r, int64_t u) {
    return uint32_t{f32_to_bf16(values.row(r)[2 * u + 1])} << 16 |
           f32_to_bf16(values.row(r)[2 * u]);
  };
  for (const Bf16ProductKernels* kernels : all_kernels()) {
    for (int64_t rows = 1; rows <= kProductRows; ++rows) {
      // Rows side by side in every unit, as weight gradients have them.
      std::vector<uint32_t> a(static_cast<size_t>(kUnits * 15)), b(kUnits * kProductColumns);
      for (int64_t u = 0; u < kUnits; ++u) {
        for (int64_t r = 0; r < rows; ++r) a[static_cast<size_t>(u * 15 + r)] = unit(r, u);
        for (int64_t c = 0; c < kProductColumns; ++c) {
          b[static_cast<size_t>(u * kProductColumns + c)] = unit(kProductRows + c, u);
        }
      }
      std::vector<float> sums(kProductRows * kProductColumns, NAN);
      kernels->tile(rows, kUnits, a.data(), 1, 15, b.data(), sums.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < kProductColumns; ++c) {
          double wanted = 0.0, sizes = 0.0;
          for (int64_t k = 0; k < 2 * kUnits; ++k) {
            const double term = in_format(values.row(r)[k], DType::kBF16) *
                                in_format(values.row(kProductRows + c)[k], DType::kBF16);
            wanted += term;
            sizes += std::abs(term);
          }
          ASSERT_NEAR(sums[static_cast<size_t>(r * kProductColumns + c)], wanted,
                      kEps * 2.0 * kUnits * sizes)
              << kernels->name << ", " << rows << " rows";
        }
      }
    }
  }
}

}  // namespace
}  // namespace tarn::kernels
