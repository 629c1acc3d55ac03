#include "kernels/roof.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/buffer.h"
#include "unit/kernels/test_rows.h"

namespace tarn::kernels {
namespace {

using testing::for_each_target;

TEST(Roof, ProbesComeInOrderAndSayWhatTheyUse) {
  std::vector<std::string> kinds;
  for (const ArithmeticProbe& probe : arithmetic_probes()) {
    kinds.emplace_back(probe.kind);
    EXPECT_EQ(probe.run == nullptr, probe.instructions == nullptr) << probe.kind;
  }
  EXPECT_EQ(kinds,
            (std::vector<std::string>{"f32_fma", "bf16_dot", "int8_dot", "bf16_amx", "int8_amx"}));
  EXPECT_NE(arithmetic_probes().front().run, nullptr) << "every CPU multiplies and adds";
}

TEST(Roof, LoopsCountTheirMultiplyAddsExactly) {
  for_each_target([&] {
    for (const ArithmeticProbe& probe : arithmetic_probes()) {
      if (probe.run == nullptr) continue;
      SCOPED_TRACE(probe.kind);
      EXPECT_EQ(probe.run(0), 0);
      const double once = probe.run(1);
      EXPECT_GT(once, 0);
      for (int64_t iterations : {int64_t{2}, int64_t{1001}, kMaxProbeIterations}) {
        EXPECT_EQ(probe.run(iterations), static_cast<double>(iterations) * once);
      }
    }
  });
}

TEST(Roof, VectorLoopsDoWhatTheirInstructionsDo) {
  for (const ArithmeticProbe& probe : arithmetic_probes()) {
    if (probe.run == nullptr) continue;
    // Twelve chains of 512 bits of pairs, of 512 or 256 bits of quads; four tiles of 16 x 16 sums.
    const std::string name = probe.instructions;
    double wanted = probe.run(1);
    if (name == "AVX512_BF16") wanted = 12 * 16 * 2;
    if (name == "AVX512_VNNI") wanted = 12 * 16 * 4;
    if (name == "AVX_VNNI") wanted = 12 * 8 * 4;
    if (name == "AMX_BF16") wanted = 4 * 256 * 32;
    if (name == "AMX_INT8") wanted = 4 * 256 * 64;
    if (name == "AVX3") wanted = 12 * 16;
    if (name == "AVX2") wanted = 12 * 8;
    EXPECT_EQ(probe.run(1), wanted) << name;
  }
}

TEST(Roof, ReadingTouchesEveryElementInEveryPass) {
  for_each_target([&] {
    constexpr int64_t kCount = 3 * kProbeBlock;
    Buffer<uint32_t> data(kCount);
    for (int64_t i = 0; i < kCount; ++i) data[i] = static_cast<uint32_t>(i);
    EXPECT_EQ(read_probe(data.data(), kCount, 5), 5 * kCount * (kCount - 1) / 2);
    EXPECT_EQ(read_probe(data.data(), kCount, 0), 0);
  });
}

TEST(Roof, WritingWritesEveryElementAndNoMore) {
  for_each_target([&] {
    constexpr int64_t kCount = 2 * kProbeBlock;
    Buffer<float> a(kCount), b(kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      a[i] = static_cast<float>(i);
      b[i] = static_cast<float>(2 * i + 1);
    }
    auto out = Buffer<float>::filled(kCount + 16, -1.0f);
    copy_probe(a.data(), kCount, out.data());
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], a[i]);
    triad_probe(a.data(), b.data(), 0.5f, kCount, out.data());
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], a[i] + 0.5f * b[i]);
    for (int64_t i = kCount; i < kCount + 16; ++i) ASSERT_EQ(out[i], -1.0f);
  });
}

}  // namespace
}  // namespace tarn::kernels
