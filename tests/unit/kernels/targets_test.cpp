#include "kernels/targets.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tarn::kernels {
namespace {

TEST(Targets, SupportedOnesAreCompiledBestFirst) {
  const std::vector<std::string> compiled = compiled_targets();
  const std::vector<std::string> supported = supported_targets();
  ASSERT_FALSE(supported.empty());
  // The fallback without vector instructions is in every build, and last.
  EXPECT_EQ(supported.back(), compiled.back());
  auto from = compiled.begin();
  for (const std::string& name : supported) {
    from = std::find(from, compiled.end(), name);
    ASSERT_NE(from, compiled.end()) << name;
  }
}

TEST(Targets, ForcingAnUnknownTargetFails) {
  EXPECT_FALSE(force_target("AVX9"));
  EXPECT_FALSE(force_target("avx2 "));
  EXPECT_TRUE(force_target(""));
}

TEST(Targets, ForcingDoesNotChangeWhatIsReported) {
  const std::vector<std::string> before = supported_targets();
  for (const std::string& name : before) {
    EXPECT_TRUE(force_target(name));
    EXPECT_EQ(supported_targets(), before);
  }
  EXPECT_TRUE(force_target(""));
}

TEST(Targets, CpuHasAName) { EXPECT_FALSE(cpu_model_name().empty()); }

}  // namespace
}  // namespace tarn::kernels
