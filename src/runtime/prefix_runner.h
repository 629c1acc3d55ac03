#pragma once

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
  /// `model` and `pool` (nullable) outlive the runner.
  PrefixRunner(const model::Model& model, const SamplerOptions& sampler, ThreadPool* pool)
      : model_(model), sampler_(model.config().head, sampler), pool_(pool) {}

  struct Sequence {
    std::vector<int32_t>* tokens = nullptr;  ///< the next token is appended
    Philox rng;
  };

  /// Draws one token for each sequence. Errors: Sampler::draw.
  Status step(std::span<Sequence> sequences);

 private:
  const model::Model& model_;
  Sampler sampler_;
  ThreadPool* pool_;
  Arena arena_;
  std::vector<int32_t> inputs_;
  std::vector<int64_t> begin_, length_, positions_;
  std::vector<float> outputs_;
};

}  // namespace tarn::runtime
