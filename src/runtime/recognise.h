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

namespace tarn::runtime {

struct RecogniseOptions {
  int64_t beam = 0;    ///< prefixes of the search; 0: the most probable path
  int64_t stream = 0;  ///< frames that are heard at a time, by a causal model; 0: all at once
  std::function<void(int64_t done, int64_t total)> progress{};  ///< utterances, after each of them
  const std::atomic<bool>* cancel = nullptr;                    ///< looked at before each of them
};

/// The labels that a model over frames hears in each utterance [length, features], one after another;
/// threads share its rows. Errors: a model over symbols, or to be streamed and not causal; a stream with a
/// beam; an utterance whose size is no multiple of
/// the features, or that has more rows than max_tokens (both name it); a head output that is not
/// finite; cancelled.
Result<std::vector<std::vector<int32_t>>> recognise(std::shared_ptr<const model::Model> model,
                                                    std::span<const std::vector<float>> utterances,
                                                    const RecogniseOptions& options,
                                                    ThreadPool* pool);

}  // namespace tarn::runtime
