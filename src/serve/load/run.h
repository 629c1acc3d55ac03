#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "serve/load/completion_check.h"
#include "serve/load/load.h"
#include "serve/load/target.h"

namespace tarn::serve::load {

using Clock = std::chrono::steady_clock;

/// What a run knows of the server.
struct Facts {
  std::string model;
  int64_t vocabulary = 0;  ///< 0: unknown
  int64_t max_tokens = 0;  ///< of a sequence; 0: no limit, or unknown
  bool counts_bytes = false;
};

/// What the callers of one run share. Threads: any, where nothing else is said.
struct Run {
  LoadOptions options;
  Target target;
  Facts facts;
  std::string name;  ///< of its sessions, before their numbers
  Clock::time_point begin{};

  std::atomic<bool> stopping{false};  ///< no new requests
  std::atomic<int64_t> taken{0};      ///< requests that were made
  std::atomic<int64_t> players{0};    ///< that are not done
  std::atomic<int64_t> long_in_flight{0};
  std::atomic<double> end{0};  ///< of what LoadResult::seconds counts; 0: not yet

  double now() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
  const std::string& key(int64_t index) const;
  /// Whether another request is to be made.
  bool take();
  /// Sets `end`, once.
  void end_now();
};

/// One turn to ask for.
struct Question {
  int64_t number = 0;  ///< equal numbers are equal questions; -1: the long prompt
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  std::string session = {};
  int64_t if_seq = 0;  ///< with a session
};

/// Printable ASCII, or what of it the vocabulary has: the same for the same question.
std::vector<int64_t> prompt_of(const Question& question, int64_t vocabulary);
/// The body of the request for it.
std::string body_of(const Question& question, const Facts& facts);
Expected expected_of(const Question& question, const Facts& facts);

}  // namespace tarn::serve::load
