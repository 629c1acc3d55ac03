#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/model.h"

namespace tarn::serve {

struct SessionBenchOptions {
  int64_t sessions = 10'000;     ///< of one model in this process
  int64_t streams = 32;          ///< that draw at the same time
  int64_t tokens = 256;          ///< that a stream draws, fewer where the model takes fewer
  int64_t prompt_tokens = 4096;  ///< of prompts that arrive meanwhile
  int64_t prompt_budget = 32;    ///< EngineOptions::prompt_budget
  int64_t repeats = 3;           ///< of the throughputs, taking turns; figures are medians
  int threads = 1;
  uint64_t seed = 1;
  std::function<void(int64_t done, int64_t total)> progress{};  ///< in turns of sessions
};

struct SessionBenchResult {
  // Sessions fed with tokens of their own and resumed in turn.
  int64_t sessions = 0;
  int64_t turns = 0;  ///< of each
  int64_t different =
      0;  ///< sessions whose snapshot is not that of a control run without the engine
  int64_t tokens_min = 0, tokens_max = 0;  ///< of a session, at the end
  int64_t state_bytes_first = 0;           ///< of the largest, after the first turn
  int64_t state_bytes_last = 0;            ///< after the last
  int64_t table_bytes = 0;                 ///< that the engine counts for all sessions
  int64_t resident_growth_bytes = -1;      ///< of the process; -1: not to be had
  int64_t session_tokens = 0;              ///< read and drawn by all sessions
  double session_seconds = 0;

  // Streams.
  int64_t streams = 0;
  int64_t stream_tokens = 0;  ///< each
  double one_tokens_per_second = 0;
  double all_tokens_per_second = 0;

  struct Gaps {
    double p50 = 0, p99 = 0, max = 0;  ///< seconds between tokens of a stream
  };
  Gaps one;                             ///< of one stream
  Gaps all;                             ///< of all streams
  Gaps with_prompts;                    ///< while prompts arrive, each when the last one was read
  int64_t prompts = 0;                  ///< read meanwhile; 0: the model does not take that many
  double prompt_tokens_per_second = 0;  ///< of those
};

/// Measures how many sessions fit and how they share the processor, through an Engine of its own.
/// Errors: a model that cannot work token by token; sessions that do not fit the memory.
Result<SessionBenchResult> bench_sessions(const std::shared_ptr<const model::Model>& model,
                                          const SessionBenchOptions& options);

}  // namespace tarn::serve
