#pragma once

#include <cstdint>

#include "base/threads.h"
#include "kernels/gemm.h"
#include "model/model.h"
#include "runtime/roof_bench.h"

namespace tarn::runtime {

/// The limits that generation meets.
struct GenerationRoof {
  Roof base;  ///< f32 arithmetic and the levels of memory
  /// Dot products of bf16 and of bytes (a multiply-add counts as two); 0: no such instructions.
  double bf16_per_second = 0;
  double int8_per_second = 0;
};

/// Measures them with all threads of the pool; about half a second. The best round counts.
GenerationRoof measure_generation_roof(ThreadPool& pool);

/// What one step of a batch has to do, by formula.
struct StepWork {
  double product_flops = 0;   ///< of the dense products: 2·out·in for each weight and sequence
  double operator_flops = 0;  ///< of the mixers' operators, MixerDef::flops
  double weight_bytes = 0;    ///< of the products' weights in their format, read once per step
  double state_bytes = 0;     ///< of all sequences' states at `position`
};
StepWork step_work(const model::Model& model, kernels::WeightFormat format, int64_t batch,
                   int64_t position);

/// How close steps came to the limits.
struct StepShare {
  /// 100 · (product_flops / peak of the format + operator_flops / f32 peak) / seconds
  double arithmetic_percent = 0;
  /// 100 · (weight_bytes + 2 · state_bytes) / bandwidth / seconds: states are read and written. The
  /// bandwidth is that of the fastest level which could hold the weights and all states.
  double memory_percent = 0;
  /// Their sum: 100 is what an engine reaches that does nothing else, one after the other. Where
  /// arithmetic and memory overlap more is possible; the larger of the two is at most 100.
  double percent() const { return arithmetic_percent + memory_percent; }
};
/// Zeros where the machine lacks the format's instructions.
StepShare step_share(const GenerationRoof& roof, kernels::WeightFormat format, const StepWork& work,
                     double seconds);

}  // namespace tarn::runtime
