#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "serve/turn.h"

namespace tarn::serve {

/// Whose turn it is among fairness keys: whoever was served longest ago.
class FairClock {
 public:
  /// When `key` was last served, 0: never, or so long ago that it was forgotten.
  uint64_t served(const std::string& key) const;
  /// Serves `key` now; the new time.
  uint64_t serve(const std::string& key);

 private:
  std::map<std::string, uint64_t> served_;
  uint64_t now_ = 0;
};

/// Turns that wait for a place in the rounds: higher priorities first, then fairness keys in turn, and
/// within a key those that came first.
class TurnQueue {
 public:
  using TurnPointer = std::shared_ptr<Turn>;

  void push(TurnPointer turn);
  int64_t size() const { return size_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }

  enum class Answer : uint8_t { kTake, kSkip, kStop };
  /// The first turn that `ask` says kTake of, out of the queue; null after kStop or when all were
  /// skipped.
  TurnPointer take(const FairClock& clock, const std::function<Answer(Turn&)>& ask);
  /// Moves the turns that `leaves` holds for to the end of `left`.
  void take_all(const std::function<bool(const Turn&)>& leaves, std::vector<TurnPointer>* left);

 private:
  using Line = std::deque<TurnPointer>;
  void forget(const Turn& turn);

  std::map<int, std::map<std::string, Line>, std::greater<>> lines_;  // by priority, by key
  int64_t size_ = 0;
  int64_t prompt_tokens_ = 0;
  uint64_t arrivals_ = 0;
};

}  // namespace tarn::serve
