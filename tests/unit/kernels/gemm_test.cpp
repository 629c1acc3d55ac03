#include "kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/gemm.h"
#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::dense;
using testing::for_each_target;
using testing::kEps;
using testing::TestRows;

struct Expected {
  double value = 0.0;
  double magnitude = 0.0;  // Σ |terms|: what rounding errors are relative to
};

Expected expected_element(const TestRows& x, int64_t r, const std::vector<float>& weight,
                          const float* bias, int64_t n, double old, Activation activation) {
  const int64_t in_dim = x.dim();
  Expected result{old + (bias != nullptr ? bias[n] : 0.0), 0.0};
  result.magnitude = std::abs(result.value) + std::abs(old);
  for (int64_t k = 0; k < in_dim; ++k) {
    const double term = static_cast<double>(x.row(r)[k]) * weight[n * in_dim + k];
    result.value += term;
    result.magnitude += std::abs(term);
  }
  result.value = reference::activation(activation, result.value);
  return result;
}

void check_product(int64_t rows, int64_t out_dim, int64_t in_dim, bool with_bias,
                   Activation activation, bool accumulate, ThreadPool* pool) {
  SCOPED_TRACE(::testing::Message() << rows << " rows, " << in_dim << " -> " << out_dim);
  const std::vector<float> weight = dense(out_dim, in_dim, 1);
  const std::vector<float> bias = dense(1, out_dim, 2);
  const float* bias_or_none = with_bias ? bias.data() : nullptr;
  const TestRows x = TestRows::uniform(rows, in_dim, 3);
  const TestRows old = TestRows::uniform(rows, out_dim, 4);
  TestRows out = accumulate ? old : TestRows(rows, out_dim);
  const PackedMatrix matrix = PackedMatrix::pack(weight.data(), bias_or_none, out_dim, in_dim);
  EXPECT_EQ(matrix.out_dim(), out_dim);
  EXPECT_EQ(matrix.in_dim(), in_dim);
  matrix.multiply(rows, x.data(), x.stride(), out.data(), out.stride(), activation, accumulate,
                  pool);
  EXPECT_TRUE(out.padding_is_intact());
  const double steps = std::sqrt(static_cast<double>(in_dim)) + 4.0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < out_dim; ++n) {
      const Expected want =
          expected_element(x, r, weight, bias_or_none, n,
                           accumulate ? static_cast<double>(old.row(r)[n]) : 0.0, activation);
      const double rounding = kEps * steps * want.magnitude;
      // The activations' slope is at most 1.13; their own error is what activation.h states.
      const double bound = activation == Activation::kNone
                               ? rounding
                               : 1.2 * rounding + 1e-6 * std::max(1.0, want.magnitude);
      ASSERT_NEAR(out.row(r)[n], want.value, bound) << "row " << r << " output " << n;
    }
  }
}

TEST(Gemm, MatchesDoubleReferenceForAwkwardShapes) {
  for_each_target([] {
    for (int64_t rows : {0, 1, 2, 3, 4, 5, 7, 12, 13, 25}) {
      for (int64_t out_dim : {1, 3, 33, 72, 128, 300}) {
        check_product(rows, out_dim, 1 + out_dim % 37, true, Activation::kNone, false, nullptr);
      }
    }
    for (int64_t in_dim : {0, 1, 3, 33, 72, 96, 128, 300}) {
      for (int64_t rows : {1, 3, 17}) {
        check_product(rows, 40, in_dim, true, Activation::kNone, false, nullptr);
        check_product(rows, 64, in_dim, false, Activation::kNone, true, nullptr);
      }
    }
  });
}

TEST(Gemm, FusesActivationAndAccumulation) {
  for_each_target([] {
    for (Activation activation :
         {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
      check_product(1, 100, 33, true, activation, false, nullptr);
      check_product(14, 100, 33, true, activation, false, nullptr);
    }
    check_product(1, 100, 33, true, Activation::kNone, true, nullptr);
    check_product(14, 100, 33, true, Activation::kNone, true, nullptr);
    check_product(14, 100, 0, true, Activation::kNone, true, nullptr);
  });
}

TEST(Gemm, RowBitsDependOnNothingButTheRow) {
  for (int64_t out_dim : {33, 256, 300}) {
    const int64_t in_dim = 129;
    const int64_t rows = 64;
    const std::vector<float> weight = dense(out_dim, in_dim, 5);
    const std::vector<float> bias = dense(1, out_dim, 6);
    const TestRows x = TestRows::uniform(rows, in_dim, 7);
    const PackedMatrix matrix = PackedMatrix::pack(weight.data(), bias.data(), out_dim, in_dim);
    for_each_target([&] {
      TestRows all(rows, out_dim);
      matrix.multiply(rows, x.data(), x.stride(), all.data(), all.stride(), Activation::kGelu,
                      false, nullptr);
      for (int64_t count : {1, 2, 3, 4, 11, 13, 40}) {
        for (int64_t first = 0; first + count <= rows; first += count) {
          TestRows some(count, out_dim, 0, 0);
          matrix.multiply(count, x.row(first), x.stride(), some.data(), some.stride(),
                          Activation::kGelu, false, nullptr);
          for (int64_t r = 0; r < count; ++r) {
            ASSERT_TRUE(some.same_bits(r, all, first + r)) << count << " rows from " << first;
          }
        }
      }
    });
  }
}

TEST(Gemm, AskingForUpcomingMemoryChangesNothing) {
  const int64_t in_dim = 37, out_dim = 130;
  const std::vector<float> weight = dense(out_dim, in_dim, 5);
  std::vector<std::vector<float>> blocks(3, std::vector<float>(2'000, 1.5f));
  const float* pointers[] = {blocks[0].data(), blocks[1].data(), blocks[2].data()};
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
    const PackedMatrix matrix =
        PackedMatrix::pack(weight.data(), nullptr, out_dim, in_dim, {.format = format});
    for_each_target([&] {
      for (const int64_t rows : {1, 3, 4, 12, 31}) {
        const TestRows x = TestRows::uniform(rows, in_dim, 7);
        TestRows plain(rows, out_dim), asking(rows, out_dim);
        matrix.multiply(rows, x.data(), x.stride(), plain.data(), plain.stride(), Activation::kRelu,
                        false, nullptr);
        matrix.multiply(rows, x.data(), x.stride(), asking.data(), asking.stride(),
                        Activation::kRelu, false, nullptr, {pointers, 3, 8'000});
        EXPECT_TRUE(asking.padding_is_intact());
        for (int64_t r = 0; r < rows; ++r) ASSERT_TRUE(asking.same_bits(r, plain, r)) << rows;
      }
    });
  }
  for (const auto& block : blocks) EXPECT_EQ(block, std::vector<float>(2'000, 1.5f));
}

TEST(Gemm, UpcomingPiecesCoverEveryBlockAndNothingElse) {
  const std::vector<float> first(300), second(300);  // 1,200 bytes each
  const float* blocks[] = {first.data(), second.data()};
  const auto bytes_at = [](const std::vector<float>& block, int64_t offset) {
    return reinterpret_cast<const char*>(block.data()) + offset;
  };
  UpcomingPieces pieces({blocks, 2, 1'200}, 512);
  for (const auto* block : {&first, &second}) {
    EXPECT_EQ(pieces.next(), bytes_at(*block, 0));
    EXPECT_EQ(pieces.next(), bytes_at(*block, 512));
    EXPECT_EQ(pieces.next(), bytes_at(*block, 1'200 - 512));
  }
  EXPECT_EQ(pieces.next(), nullptr);
  EXPECT_EQ(UpcomingPieces({blocks, 2, 1'200}, 1'201).next(), nullptr) << "smaller than a piece";
  EXPECT_EQ(UpcomingPieces({}, 512).next(), nullptr);
}

TEST(Gemm, BitsDoNotDependOnThreads) {
  const int64_t in_dim = 1001, out_dim = 700;
  const std::vector<float> weight = dense(out_dim, in_dim, 5);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
    const PackedMatrix matrix =
        PackedMatrix::pack(weight.data(), nullptr, out_dim, in_dim, {.format = format});
    // Otherwise no thread would take part.
    ASSERT_TRUE(worth_sharing(1, matrix.size_bytes()));
    for (const int64_t rows : {1, 3, 40, 300}) {
      const TestRows x = TestRows::uniform(rows, in_dim, 7);
      TestRows serial(rows, out_dim);
      matrix.multiply(rows, x.data(), x.stride(), serial.data(), serial.stride(), Activation::kSilu,
                      false, nullptr);
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        TestRows out(rows, out_dim);
        matrix.multiply(rows, x.data(), x.stride(), out.data(), out.stride(), Activation::kSilu,
                        false, &pool);
        for (int64_t r = 0; r < rows; ++r) ASSERT_TRUE(out.same_bits(r, serial, r)) << threads;
      }
    }
  }
}

TEST(Gemm, FusedTargetsGiveTheSameBits) {
  // Targets with a fused multiply-add agree bit by bit, whatever their vector width.
  const int64_t in_dim = 300;
  const int64_t out_dim = 70;
  const std::vector<float> weight = dense(out_dim, in_dim, 5);
  const PackedMatrix matrix = PackedMatrix::pack(weight.data(), nullptr, out_dim, in_dim);
  const TestRows x = TestRows::uniform(9, in_dim, 7);
  TestRows first(9, out_dim);
  bool have_first = false;
  for (const std::string& name : supported_targets()) {
    if (name.rfind("AVX", 0) != 0 && name.rfind("NEON", 0) != 0) continue;
    SCOPED_TRACE(name);
    ASSERT_TRUE(force_target(name));
    TestRows out(9, out_dim);
    matrix.multiply(9, x.data(), x.stride(), out.data(), out.stride(), Activation::kNone, false,
                    nullptr);
    if (!have_first) first = out;
    have_first = true;
    for (int64_t r = 0; r < 9; ++r) EXPECT_TRUE(out.same_bits(r, first, r));
  }
  force_target("");
}

TEST(Gemm, NanInOneRowStaysInThatRow) {
  const std::vector<float> weight = dense(64, 32, 5);
  const PackedMatrix matrix = PackedMatrix::pack(weight.data(), nullptr, 64, 32);
  TestRows x = TestRows::uniform(13, 32, 7);
  x.row(6)[31] = std::nanf("");
  TestRows out(13, 64);
  matrix.multiply(13, x.data(), x.stride(), out.data(), out.stride(), Activation::kRelu, false,
                  nullptr);
  for (int64_t r = 0; r < 13; ++r) {
    for (int64_t n = 0; n < 64; ++n) EXPECT_EQ(std::isnan(out.row(r)[n]), r == 6);
  }
}

TEST(GemmDeathTest, OneDnnMustBeInstalledBeforePacking) {
  if (onednn_version() != "none") GTEST_SKIP() << "this program has oneDNN";
  const std::vector<float> weight = dense(4, 4, 5);
  EXPECT_DEATH(PackedMatrix::pack(weight.data(), nullptr, 4, 4, {.backend = GemmBackend::kOneDnn}),
               "onednn");
}

}  // namespace
}  // namespace tarn::kernels
