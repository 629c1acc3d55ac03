#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/arena.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/sampler.h"

namespace tarn::runtime {

/// Generation without any state: the next token of each sequence from one pass over its whole
/// prefix in the parallel form, of which only the last row's head output is computed.
class PrefixRunner {
 public:
  /// `model`, `pool` and `cancel` (both nullable) outlive the runner.
  PrefixRunner(const model::Model& model, const SamplerOptions& sampler, ThreadPool* pool,
               const std::atomic<bool>* cancel = nullptr)
      : model_(model), sampler_(model.config().head, sampler), pool_(pool), cancel_(cancel) {}

  struct Sequence {
    std::vector<int32_t>* tokens = nullptr;  ///< the next token is appended
    Philox rng;
  };

  /// Draws one token for each sequence, some sequences at a time. Errors: Sampler::draw; kCancelled
  /// when `cancel` was set: then some sequences have their token.
  Status step(std::span<Sequence> sequences);

 private:
  /// How many of the sequences one pass takes: a few for each thread.
  size_t pass_size(std::span<const Sequence> sequences) const;
  Status run_pass(std::span<Sequence> sequences);

  const model::Model& model_;
  Sampler sampler_;
  ThreadPool* pool_;
  const std::atomic<bool>* cancel_;
  Arena arena_;
  std::vector<int32_t> inputs_;
  std::vector<int64_t> begin_, length_, positions_;
  std::vector<float> outputs_;
};

}  // namespace tarn::runtime
