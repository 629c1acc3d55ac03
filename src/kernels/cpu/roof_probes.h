#pragma once

#include <cstdint>

namespace tarn::kernels {

/// One implementation of an ArithmeticProbe: name of the instructions, and the loop.
struct ProbeLoop {
  const char* instructions = nullptr;
  double (*run)(int64_t iterations) noexcept = nullptr;
};

/// Loops on instructions that Highway's targets here do not have; empty where the CPU has none.
ProbeLoop bf16_dot_probe();
ProbeLoop int8_dot_probe();
ProbeLoop bf16_amx_probe();
ProbeLoop int8_amx_probe();

}  // namespace tarn::kernels
