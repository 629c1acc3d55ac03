#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/sampler.h"

namespace tarn::runtime {

enum class GenerateMode : uint8_t {
  kRecurrent,  ///< one token at a time with the state (a fixed state or a KV cache)
  kParallel,   ///< the whole prefix again for every token, nothing kept: the paper's baseline
};

struct GenerateOptions {
  int64_t count = 1;   ///< sequences
  int64_t batch = 1;   ///< sequences advanced together
  int64_t length = 0;  ///< tokens per sequence, the prompt included; 0: the model's max_tokens
  uint64_t seed = 0;   ///< sequence i draws from stream i of this seed
  SamplerOptions sampler{};
  /// Tokens to start from: none, one for all sequences, or one per sequence.
  std::vector<std::vector<int32_t>> prompts{};
  GenerateMode mode = GenerateMode::kRecurrent;
  /// Not empty: generate nothing; time one token of one batch at these prefix lengths (each in
  /// [1, length], any order) and integrate over all lengths by straight lines between them (constant
  /// outside). Prefixes are the prompt, then token 0. kRecurrent: the state is set to each prefix
  /// without evaluating it, so its contents are the initial values.
  std::vector<int64_t> positions_to_time{};
  /// Called after every step from the calling thread: tokens done, tokens in all (over `count`);
  /// when only timing: positions done, positions in all.
  std::function<void(int64_t done, int64_t total)> progress{};
  const std::atomic<bool>* cancel = nullptr;  ///< set it to stop: the result is kCancelled
  /// Refuse (kResource) when states, activations and tokens would take more; 0: the machine's all.
  int64_t memory_limit_bytes = 0;

  /// Of sequence `sequence`; empty when there are no prompts.
  std::span<const int32_t> prompt_of(int64_t sequence) const {
    if (prompts.empty()) return {};
    return prompts[prompts.size() == 1 ? 0 : static_cast<size_t>(sequence)];
  }
};

struct GenerateResult {
  std::vector<std::vector<int32_t>> tokens;  ///< per sequence, prompt included; empty if integrated
  double seconds = 0;            ///< wall time of evaluation and drawing, prompts included
  int64_t generated_tokens = 0;  ///< drawn, over all sequences (prompts excluded)
  int64_t steps = 0;             ///< steps over all batches
  bool integrated = false;       ///< seconds is an estimate from positions_to_time
  /// Wall time of a step divided by the number of sequences in it, in milliseconds: median over the
  /// first and over the last 32 steps of a sequence (fewer if it has fewer), from the first batch.
  /// A step evaluates the newest token and draws the next one. Recurrent: the step that evaluates a
  /// prompt is left out of `first` when the prompt has more than the start token. When integrated:
  /// the time at the shortest and the longest timed prefix.
  double ms_per_token_first = 0;
  double ms_per_token_last = 0;
  /// State of one sequence that holds `length` tokens, in bytes; 0 for kParallel.
  int64_t state_bytes_per_sequence = 0;
  struct TimedPosition {
    int64_t prefix = 0;  ///< inputs evaluated for one token
    double seconds = 0;  ///< of one batch
  };
  std::vector<TimedPosition> timed;  ///< sorted by prefix; when integrated
};

/// Generates sequences in batches. Tokens depend on model, seed, sampler and prompt alone, whatever
/// `batch` and the threads. Errors: options out of range, prompt too long or outside the
/// vocabulary (kInvalidArgument), too much memory (kResource), cancelled.
Result<GenerateResult> generate(std::shared_ptr<const model::Model> model,
                                const GenerateOptions& options, ThreadPool* pool);
/// Whether generate() would refuse, and why, without anything being allocated.
Status check_generate(const model::Model& model, const GenerateOptions& options, int64_t threads);

}  // namespace tarn::runtime
