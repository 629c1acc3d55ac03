#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/result.h"
#include "base/threads.h"
#include "mixers/mixer.h"

namespace tarn::runtime {

/// What is timed of one operator (without projections).
enum class OperatorPass : uint8_t {
  kForward,          ///< whole sequences in chunks, keeping what backward needs
  kBackward,         ///< the gradient alone
  kForwardBackward,  ///< both
  kStep,             ///< one token per sequence, with a state that has seen `tokens` tokens
};

struct OperatorBenchOptions {
  OperatorPass pass = OperatorPass::kForward;
  DType dtype = DType::kF32;  ///< of inputs and output: f32, or bf16 (kForward only)
  std::string config;         ///< JSON of the mixer's config, as from operator_config()
  int64_t batch = 1;
  int64_t tokens = 1024;
  int64_t repeats = 7;
  uint64_t seed = 1;
  const std::atomic<bool>* cancel = nullptr;  ///< looked at before every call and while filling
};

struct OperatorBenchResult {
  double ms_median = 0, ms_min = 0, ms_max = 0;  ///< of one call
  /// Memory beyond inputs, outputs and their gradients: scratch, and what forward keeps for
  /// backward.
  int64_t peak_extra_bytes = 0;
  /// Growth of the process's peak resident memory over the first call; -1 where unknown.
  int64_t resident_growth_bytes = -1;
  int64_t tensor_bytes = 0;  ///< of inputs and outputs, and of their gradients with a backward pass
  int64_t state_bytes = 0;   ///< kStep: of all sequences
  double flops = 0;          ///< of one call, by the mixer's formula (MixerDef::flops)
  /// Bytes that one call must move: each input read, each output written once, the operator's
  /// parameters read, what forward saves written and read; kStep: what it reads and what it writes of
  /// the state (MixerDef::step_traffic).
  double bytes = 0;
  /// What repeated calls touch: tensors, parameters, and of the state only what a step reads.
  int64_t working_set_bytes = 0;
};

/// OperatorBenchResult's `flops` and `bytes` of a pass. Pure. Errors: what the config's parser says.
struct OperatorWork {
  double flops = 0, bytes = 0;
  double touched_state = 0, touched_params = 0;  ///< bytes that stay in a cache from call to call
};
Result<OperatorWork> operator_work(const mixers::MixerDef& mixer,
                                   const OperatorBenchOptions& options);

/// The mixer's first example config with these sizes in it. 0: not asked for; then 8 heads of 64
/// channels where the mixer takes them, or the same width of a state without heads (hidden_dim,
/// inner_dim). Errors: what its parser says to a size that was asked for.
Result<std::string> operator_config(const mixers::MixerDef& mixer, int64_t num_heads,
                                    int64_t key_dim, int64_t value_dim);

/// Whether the mixer has the form and type that the options ask for.
bool has_form(const mixers::MixerDef& mixer, const OperatorBenchOptions& options);
/// The same as an error, which also looks at the config: without causality there is neither a state
/// nor a form for bf16.
Status check_form(const mixers::MixerDef& mixer, const mixers::MixerConfig& config,
                  const OperatorBenchOptions& options);

/// Runs a pass on a small, awkward shape and compares it with the double-precision token loop: the
/// output (relative 2-norm; bf16 within its own rounding), or for the gradient a directional
/// derivative by central differences.
/// Returns the error divided by its tolerance. Errors: kUnsupported without such a form; kCorrupt,
/// with the figures, when the ratio is above 1 (or not a number).
Result<double> check_operator(const mixers::MixerDef& mixer, const OperatorBenchOptions& options,
                              ThreadPool* pool);

/// Times a pass. Call check_operator first: a wrong kernel has no speed.
/// Errors: kUnsupported without such a form; kResource when the tensors would not fit in memory;
/// cancelled.
Result<OperatorBenchResult> bench_operator(const mixers::MixerDef& mixer,
                                           const OperatorBenchOptions& options, ThreadPool* pool);

}  // namespace tarn::runtime
