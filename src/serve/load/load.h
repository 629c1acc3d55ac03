#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/load/statistics.h"

namespace tarn::serve::load {

struct LoadOptions {
  std::string url = {};
  std::string model = {};              ///< "": the first that the server tells
  std::vector<std::string> keys = {};  ///< API keys, taken in turn by the connections
  int64_t streams = 32;                ///< that draw at the same time
  int64_t idle = 0;                    ///< connections that are held open beside them
  double seconds = 10;                 ///< in which new requests are made
  int64_t requests = 0;                ///< made at most; above 0 `seconds` does not count
  int64_t prompt_tokens = 16;
  int64_t max_tokens = 64;
  double long_prompts = 0;  ///< that arrive per second in the second half of the run
  int64_t long_prompt_tokens = 4096;
  bool sessions = false;         ///< each stream continues one of its own
  double timeout_seconds = 120;  ///< of every request
  int io_threads = 1;
};

struct LoadResult {
  std::string model;
  Samples samples;     ///< of all threads
  double seconds = 0;  ///< until the last answer, or until no more requests were made
  Throughput throughput;
  int64_t idle_open = 0;  ///< that the run began with
  // Of the server's /metrics, where it tells them.
  std::optional<double> connections;        ///< open during the run
  std::optional<double> bytes_per_session;  ///< growth of the states' memory / sessions made
  std::optional<double> peak_resident_bytes;

  /// What was found wrong, as a sentence: a wrong answer, different answers to one question, no
  /// answer at all. "": nothing.
  std::string finding() const;
};

/// Puts a running server under load as `options` say and holds every answer against what was asked
/// for. Requests are greedy, so equal questions must have equal answers whatever goes on beside them.
/// Sessions that were made are removed at the end. `cancel` stops it soon. Errors: a URL that is
/// none, a server that is not there or does not answer a first request right, too few descriptors
/// (kResource), sizes that the model does not take, kCancelled.
Result<LoadResult> run_load(const LoadOptions& options, const std::atomic<bool>& cancel);

}  // namespace tarn::serve::load
