#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "runtime/sampler.h"
#include "runtime/session.h"
#include "serve/held_log_probs.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/session_table.h"
#include "serve/stop_strings.h"

namespace tarn::serve {

/// Wakes the engine's thread; lives as long as anybody could.
struct Wake {
  std::mutex mutex;
  std::condition_variable changed;
};

/// What a handle shares with its turn.
struct TurnControl {
  std::shared_ptr<Wake> wake;
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
};

/// An admitted request on its way through the engine. Threads: that of the engine.
class Turn {
 public:
  /// `give_back`, if set, gets the lease at the end.
  Turn(Request request, SessionTable::Lease lease,
       std::function<void(SessionTable::Lease)> give_back, std::shared_ptr<Wake> wake,
       Clock::time_point submitted);

  const Request& request() const { return request_; }
  const std::shared_ptr<TurnControl>& control() const { return control_; }
  /// Whether begin() can have its session; takes it.
  bool try_hold() { return request_.session.empty() || lease_.try_hold(); }
  /// Why the turn must end before it goes on, if it must.
  std::optional<FinishReason> interrupted(Clock::time_point now) const;

  /// Counts the memory that begin() needs; once is enough. Errors: kResource.
  Status take_memory(const model::Model& model, SessionTable& table);
  /// Makes or takes the session, remembers what it is, appends the prompt. `table` and `model` outlive
  /// the turn. Errors: the prompt does not fit the session; if_tokens; no memory.
  /// `spares`: sessions whose memory the copy may take.
  Status begin(const std::shared_ptr<const model::Model>& model, SessionTable& table,
               std::vector<runtime::Session>* spares, Metrics& metrics);
  runtime::Session& session() { return *session_; }
  /// Whether more than one input waits: they share the budget for prompts.
  bool is_reading() const { return session_->evaluable() > 1; }
  /// Room in the state for the inputs that wait. Errors: kResource.
  Status reserve(SessionTable& table);

  /// After a round that may have evaluated inputs: counts them; whether a token can be drawn now.
  bool note_evaluated(Metrics& metrics);
  /// Nothing can be drawn: the prompt was all, or the sequence is full.
  bool is_complete() const { return drawn_ == request_.max_tokens || session_->is_full(); }
  /// Draws the next token; the result waits for deliver().
  void draw();
  /// Tells the drawn token; the reason when it was the last one. Errors: that of the draw.
  Result<std::optional<FinishReason>> deliver(Clock::time_point now, Metrics& metrics);

  /// Rolls the session back unless `reason` keeps it, gives it up, then calls on_end. Once.
  /// Seconds since submit.
  double end(FinishReason reason, const Error& error, SessionTable& table,
             std::vector<runtime::Session>* spares, Metrics& metrics);

  bool running = false;      ///< in the engine's rounds
  uint64_t arrival = 0;      ///< number in the queue
  uint64_t last_served = 0;  ///< the engine's clock when a piece of the prompt was last evaluated

 private:
  double seconds_since_submit(Clock::time_point now) const;

  Request request_;
  std::shared_ptr<TurnControl> control_;
  SessionTable::Lease lease_;
  const std::function<void(SessionTable::Lease)> give_back_;
  const Clock::time_point submitted_;
  bool has_text_ = false;
  StopStrings stop_;
  std::optional<runtime::Session> own_;     // of a request without a session
  std::optional<runtime::Session> before_;  // the session as it was
  runtime::SamplerOptions sampler_before_;
  runtime::Session* session_ = nullptr;
  std::optional<runtime::Sampler> sampler_;
  Result<int32_t> token_{0};
  runtime::DrawnLogProbs token_log_probs_;  // if the request wants them
  HeldLogProbs log_probs_;
  int64_t charged_ = 0;
  int64_t counted_position_ = 0;
  bool has_read_ = false;
  int64_t evaluated_ = 0;
  int64_t drawn_ = 0;
  double queued_seconds_ = 0;
  double first_token_seconds_ = 0;
  Clock::time_point last_token_{};
};

}  // namespace tarn::serve
