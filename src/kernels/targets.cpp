#include "kernels/targets.h"

#include <array>
#include <cstring>

#include "kernels/cpu/simd_targets.h"

#include "hwy/highway.h"
#include "hwy/targets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <fstream>
#endif

namespace tarn::kernels {
namespace {

std::vector<std::string> target_names(int64_t targets) {
  std::vector<std::string> names;
  // Lower bits are better targets.
  for (; targets != 0; targets &= targets - 1) names.push_back(hwy::TargetName(targets & -targets));
  return names;
}

/// What this CPU offers among the compiled targets, whatever force_target did before.
int64_t runnable_targets() {
  static const int64_t detected = [] {
    hwy::SetSupportedTargetsForTest(0);
    return hwy::SupportedTargets();
  }();
  // The fallback needs no instruction beyond the baseline, so every CPU runs it.
  return (detected | HWY_STATIC_TARGET) & HWY_TARGETS;
}

}  // namespace

std::vector<std::string> compiled_targets() { return target_names(HWY_TARGETS); }

std::vector<std::string> supported_targets() { return target_names(runnable_targets()); }

bool force_target(const std::string& name) {
  const int64_t runnable = runnable_targets();
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return true;
  }
  for (int64_t targets = runnable; targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(target);
      return true;
    }
  }
  return false;
}

bool dispatch_takes_avx512() {
#if defined(__x86_64__)
  // Lower bits are better targets.
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return (targets & -targets) <= HWY_AVX3;
#else
  return false;
#endif
}

#if defined(__x86_64__)

namespace {

/// AMX tiles with the product of that bit of leaf 7's EDX, from CPU and operating system.
bool has_amx(unsigned product) {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  const unsigned wanted = (1u << 24) | product;
  if ((edx & wanted) != wanted) return false;
  // Linux hands out the tile registers only to processes that ask: XFEATURE_XTILEDATA is 18.
  constexpr long kArchRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kArchRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_amx_bf16() { return has_amx(1u << 22); }
bool has_amx_int8() { return has_amx(1u << 25); }

std::string cpu_model_name() {
  std::array<unsigned, 12> words{};
  if (static_cast<unsigned>(__get_cpuid_max(0x80000000u, nullptr)) < 0x80000004u) return "unknown";
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* out = &words[leaf * 4];
    __get_cpuid(0x80000002u + leaf, &out[0], &out[1], &out[2], &out[3]);
  }
  char text[sizeof(words) + 1] = {};
  std::memcpy(text, words.data(), sizeof(words));
  std::string name(text);
  const size_t begin = name.find_first_not_of(' ');
  if (begin == std::string::npos) return "unknown";
  return name.substr(begin, name.find_last_not_of(' ') - begin + 1);
}

#else

bool has_amx_bf16() { return false; }
bool has_amx_int8() { return false; }

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0 || line.rfind("CPU part", 0) == 0) {
      const size_t colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown";
}

#endif

}  // namespace tarn::kernels
