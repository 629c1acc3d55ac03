#pragma once

#include <string>
#include <vector>

namespace tarn::kernels {

/// Names of the SIMD targets compiled into this binary, best first, e.g. {"AVX3", "AVX2", "SSE4"}.
std::vector<std::string> compiled_targets();
/// The subset that this CPU can run, best first; the first is what dispatch takes.
std::vector<std::string> supported_targets();
/// Restricts dispatch to one target by name (for tests, doctor and bug hunts); empty restores the
/// automatic choice. False if the CPU or the build lacks it. Not while kernels run.
bool force_target(const std::string& name);
/// Whether dispatch, forced or not, takes a target with 512-bit vectors.
bool dispatch_takes_avx512();
/// True when the CPU and the operating system offer AMX tiles and their bf16 (int8) product.
bool has_amx_bf16();
bool has_amx_int8();
/// The CPU's own model string, or "unknown".
std::string cpu_model_name();

}  // namespace tarn::kernels
