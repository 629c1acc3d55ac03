#include "kernels/cpu/reduced_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "kernels/gemm.h"
#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::dense;
using testing::kEps;
using testing::TestRows;

std::vector<const ReducedKernels*> all_kernels() {
  std::vector<const ReducedKernels*> kernels{&generic_reduced_kernels()};
  if (avx512_reduced_kernels() != nullptr) kernels.push_back(avx512_reduced_kernels());
  return kernels;
}

/// The values that a row or a weight stands for once it is in the format.
std::vector<double> as_reduced(const float* x, int64_t size, WeightFormat format) {
  std::vector<double> values;
  float largest = 0.0f;
  for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(x[i]));
  for (int64_t i = 0; i < size; ++i) {
    if (format == WeightFormat::kBF16) {
      values.push_back(bf16_to_f32(f32_to_bf16(x[i])));
    } else {
      const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
      values.push_back(std::nearbyint(x[i] * inverse) * (double{largest} / 127.0));
    }
  }
  return values;
}

void check(const ReducedKernels& kernels, WeightFormat format, int64_t rows, int64_t out_dim,
           int64_t in_dim, Activation activation, bool accumulate, ThreadPool* pool) {
  SCOPED_TRACE(::testing::Message() << kernels.name << " format " << static_cast<int>(format)
                                    << ", " << rows << " rows, " << in_dim << " -> " << out_dim);
  const std::vector<float> weight = dense(out_dim, in_dim, 1);
  const std::vector<float> bias = dense(1, out_dim, 2);
  const TestRows x = TestRows::uniform(rows, in_dim, 3);
  const TestRows old = TestRows::uniform(rows, out_dim, 4);
  TestRows out = accumulate ? old : TestRows(rows, out_dim);
  const ReducedPanels panels = pack_reduced(weight.data(), bias.data(), out_dim, in_dim, format);
  multiply_reduced(
      kernels,
      {&panels, rows, x.data(), x.stride(), out.data(), out.stride(), activation, accumulate},
      pool);
  EXPECT_TRUE(out.padding_is_intact());
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> input = as_reduced(x.row(r), in_dim, format);
    for (int64_t n = 0; n < out_dim; ++n) {
      const std::vector<double> w = as_reduced(weight.data() + n * in_dim, in_dim, format);
      double value = bias[static_cast<size_t>(n)];
      if (accumulate) value += static_cast<double>(old.row(r)[n]);
      double magnitude = std::abs(value) + 1.0;
      for (size_t k = 0; k < w.size(); ++k) {
        value += input[k] * w[k];
        magnitude += std::abs(input[k] * w[k]);
      }
      value = reference::activation(activation, value);
      const double steps = std::sqrt(static_cast<double>(in_dim)) + 8.0;
      ASSERT_NEAR(out.row(r)[n], value, 1.2 * kEps * steps * magnitude + 1e-6)
          << "row " << r << " output " << n;
    }
  }
}

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kInt8};

TEST(ReducedGemm, IsTheProductOfTheRoundedOperands) {
  for (const ReducedKernels* kernels : all_kernels()) {
    for (const WeightFormat format : kFormats) {
      for (const int64_t rows : {0, 1, 2, 3, 4, 5, 12, 13, 25}) {
        for (const int64_t out_dim : {1, 31, 32, 33, 70, 96, 130, 300}) {
          check(*kernels, format, rows, out_dim, 1 + out_dim % 37, Activation::kNone, false,
                nullptr);
        }
      }
      for (const int64_t in_dim : {0, 1, 2, 3, 4, 5, 33, 256}) {
        check(*kernels, format, 3, 40, in_dim, Activation::kNone, true, nullptr);
        check(*kernels, format, 14, 64, in_dim, Activation::kGelu, false, nullptr);
        check(*kernels, format, 1, 100, in_dim, Activation::kRelu, false, nullptr);
        check(*kernels, format, 11, 70, in_dim, Activation::kRelu, false, nullptr);
        check(*kernels, format, 27, 45, in_dim, Activation::kNone, true, nullptr);
      }
    }
  }
}

TEST(ReducedGemm, QuantisesToTheNearestOf255Levels) {
  for (const ReducedKernels* kernels : all_kernels()) {
    for (const int64_t in_dim : {1, 15, 16, 17, 31, 32, 33, 47, 64, 100, 257}) {
      const int64_t depth = (in_dim + 3) / 4 * 4;
      for (int64_t at = 0; at < in_dim; at += 7) {  // the largest anywhere, negative
        std::vector<float> x = dense(1, in_dim, static_cast<uint64_t>(in_dim + at));
        x[static_cast<size_t>(at)] = -3.5f;
        std::vector<uint8_t> to(static_cast<size_t>(depth) + 1, 77);
        const float scale = kernels->quantise_row(in_dim, depth, x.data(), to.data());
        EXPECT_EQ(scale, 3.5f / 127.0f);
        for (int64_t i = 0; i < depth; ++i) {
          const float value = i < in_dim ? x[static_cast<size_t>(i)] : 0.0f;
          const auto wanted = 128 + static_cast<int>(std::nearbyint(value * (127.0f / 3.5f)));
          ASSERT_EQ(to[static_cast<size_t>(i)], wanted) << kernels->name << " " << in_dim;
        }
        EXPECT_EQ(to.back(), 77) << "wrote past the row";
      }
    }
  }
}

TEST(ReducedGemm, BytesGiveTheSameBitsWithEveryKernel) {
  if (avx512_reduced_kernels() == nullptr) GTEST_SKIP() << "this CPU has no AVX-512 byte products";
  const int64_t rows = 40, out_dim = 100, in_dim = 131;
  const std::vector<float> weight = dense(out_dim, in_dim, 1);
  const ReducedPanels panels =
      pack_reduced(weight.data(), nullptr, out_dim, in_dim, WeightFormat::kInt8);
  const TestRows x = TestRows::uniform(rows, in_dim, 3);
  TestRows a(rows, out_dim), b(rows, out_dim);
  multiply_reduced(
      generic_reduced_kernels(),
      {&panels, rows, x.data(), x.stride(), a.data(), a.stride(), Activation::kNone, false},
      nullptr);
  multiply_reduced(
      *avx512_reduced_kernels(),
      {&panels, rows, x.data(), x.stride(), b.data(), b.stride(), Activation::kNone, false},
      nullptr);
  for (int64_t r = 0; r < rows; ++r) EXPECT_TRUE(a.same_bits(r, b, r)) << r;
}

TEST(ReducedGemm, RowBitsDependOnNothingButTheRow) {
  const int64_t rows = 64, in_dim = 129;
  const TestRows x = TestRows::uniform(rows, in_dim, 7);
  for (const WeightFormat format : kFormats) {
    for (const int64_t out_dim : {33, 256, 300}) {
      const std::vector<float> weight = dense(out_dim, in_dim, 5);
      const PackedMatrix matrix =
          PackedMatrix::pack(weight.data(), nullptr, out_dim, in_dim, {.format = format});
      TestRows all(rows, out_dim);
      matrix.multiply(rows, x.data(), x.stride(), all.data(), all.stride(), Activation::kSilu,
                      false, nullptr);
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const int64_t count : {1, 2, 3, 4, 11, 13, 40, 64}) {
          for (int64_t first = 0; first + count <= rows; first += count) {
            TestRows some(count, out_dim);
            matrix.multiply(count, x.row(first), x.stride(), some.data(), some.stride(),
                            Activation::kSilu, false, &pool);
            for (int64_t r = 0; r < count; ++r) {
              ASSERT_TRUE(some.same_bits(r, all, first + r)) << count << " rows from " << first;
            }
          }
        }
      }
    }
  }
}

TEST(ReducedGemm, WhatIsNotFiniteStaysVisible) {
  const int64_t in_dim = 21, out_dim = 5;
  const std::vector<float> weight = dense(out_dim, in_dim, 5);
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  for (const ReducedKernels* kernels : all_kernels()) {
    for (const WeightFormat format : kFormats) {
      const ReducedPanels panels = pack_reduced(weight.data(), nullptr, out_dim, in_dim, format);
      for (const float value : bad) {
        std::vector<float> x = dense(1, in_dim, 9);
        x[17] = value;
        std::vector<float> out(static_cast<size_t>(out_dim), 0.0f);
        multiply_reduced(
            *kernels, {&panels, 1, x.data(), in_dim, out.data(), out_dim, Activation::kNone, false},
            nullptr);
        for (const float result : out) EXPECT_FALSE(std::isfinite(result)) << kernels->name;
        x[17] = std::numeric_limits<float>::quiet_NaN();
        multiply_reduced(
            *kernels, {&panels, 1, x.data(), in_dim, out.data(), out_dim, Activation::kRelu, false},
            nullptr);
        for (const float result : out) EXPECT_TRUE(std::isnan(result)) << kernels->name;
      }
    }
  }
}

TEST(ReducedGemm, TakesAHalfAndAQuarterOfTheMemory) {
  const std::vector<float> weight = dense(256, 512, 1);
  const auto bytes = [&](WeightFormat format) {
    return PackedMatrix::pack(weight.data(), nullptr, 256, 512, {.format = format}).size_bytes();
  };
  EXPECT_EQ(bytes(WeightFormat::kBF16), 256 * 512 * 2 + 256 * 4);
  EXPECT_EQ(bytes(WeightFormat::kInt8), 256 * 512 + 256 * 12);
}

}  // namespace
}  // namespace tarn::kernels
