#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/generate.h"

namespace tarn::runtime {

/// Times one token of one batch after prefixes of given lengths.
class PrefixTimer {
 public:
  virtual ~PrefixTimer() = default;
  /// Seconds after `prefix` inputs: median of several calls, or the time of one that takes long.
  Result<double> time(int64_t prefix);
  /// Allocates what the longest prefix needs, which is no part of the cost of a token.
  Status warm_up(int64_t prefix);

 protected:
  /// Makes `prefix` inputs wait, or the last of them.
  virtual Status fill(int64_t prefix) = 0;
  virtual Status step() = 0;
};

/// The whole prefix for every token. Model, options and pool outlive the timer.
std::unique_ptr<PrefixTimer> parallel_timer(const model::Model& model,
                                            const GenerateOptions& options, ThreadPool* pool);
/// One input on a state that says it has seen the others, though it only holds initial values.
std::unique_ptr<PrefixTimer> recurrent_timer(const std::shared_ptr<const model::Model>& model,
                                             const GenerateOptions& options, ThreadPool* pool);

}  // namespace tarn::runtime
