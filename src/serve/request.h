#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtime/sampler.h"

namespace tarn::serve {

using Clock = std::chrono::steady_clock;

/// Why a turn ended. After kStop and kLength the session holds the prompt and every token that was
/// drawn, those of the stop string included; after the others it is what it was before the turn,
/// bit for bit.
enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kError };
inline constexpr size_t kFinishReasons = 5;
/// "stop", "length", "cancelled", "deadline", "error".
const char* finish_reason_name(FinishReason reason);

/// The log probabilities of a drawn token, told with its text.
struct ToldLogProbs {
  runtime::DrawnLogProbs of;
  uint32_t text_at = 0;  ///< byte of the event's text where the token's character begins
  bool operator==(const ToldLogProbs&) const = default;
};

/// One drawn token, as it is told to the client.
struct TokenEvent {
  int32_t token = 0;
  /// What can be told now of a model over bytes: whole characters, without what could be the start of
  /// a stop string. The last token of a turn brings all the rest; only an unfinished character waits
  /// in the session for the next turn, and is U+FFFD without a session.
  std::string_view text;
  int64_t position = 0;  ///< index of the token in the sequence, 0 for the first after the start
  /// If the request wants them: of the tokens that `text` is made of, in the order of their drawing.
  /// The last token of a turn brings all the rest, except of tokens that a stop string cut off.
  std::span<const ToldLogProbs> log_probs{};
};

struct TurnEnd {
  FinishReason reason = FinishReason::kLength;
  Error error{};             ///< of kError
  int64_t stop_string = -1;  ///< index of the one that was found
  int64_t tokens_evaluated =
      0;  ///< inputs evaluated before the first draw: what the turn had to read
  int64_t tokens_drawn = 0;
  int64_t token_count = 0;         ///< of the sequence, after the turn
  double queued_seconds = 0;       ///< from submit to the first round
  double first_token_seconds = 0;  ///< from submit to the first token; 0 if there was none
  double seconds = 0;              ///< from submit to the end
};

/// One turn: tokens to read, then tokens to draw.
struct Request {
  std::string session{};  ///< id in the engine's table; empty: a new sequence, forgotten at the end
  std::vector<int32_t> prompt{};
  runtime::SamplerOptions sampler{};
  int64_t max_tokens = 0;           ///< to draw; 0: only read the prompt
  std::vector<std::string> stop{};  ///< at most kMaxStopStrings, of at most kMaxStopBytes each
  /// Tell each token's log probability and those of so many of the likeliest, 0 to kMaxLogProbs.
  std::optional<int64_t> log_probs{};
  std::optional<uint64_t> seed{};  ///< restarts the random numbers; a session's go on without it
  std::optional<int64_t> if_tokens{};  ///< refuse unless the session has that many tokens
  bool wait_for_session = false;       ///< queue behind a running turn instead of being refused
  std::optional<Clock::time_point> deadline{};  ///< of the whole turn: then it is rolled back
  std::optional<Clock::time_point> start_by{};  ///< end as kDeadline if it still waits then
  int priority = 0;                             ///< higher ones leave the queue first
  std::string fairness_key{};  ///< keys take turns in leaving the queue and reading prompts
  /// Both are called from the engine's thread: they must return soon, not throw, and not call the
  /// engine, except for Handle::cancel.
  std::function<void(const TokenEvent&)> on_token{};
  std::function<void(const TurnEnd&)> on_end{};  ///< once for every turn that was admitted
};

inline constexpr size_t kMaxStopStrings = 4;
inline constexpr size_t kMaxStopBytes = 256;
inline constexpr int64_t kMaxLogProbs = 20;

enum class RefusalReason : uint8_t {
  kInvalid,       ///< the request can never be right
  kNotFound,      ///< no such session
  kConflict,      ///< the session is in use
  kPrecondition,  ///< if_tokens
  kFull,          ///< the queue or the memory for states is full: try again
  kDraining,      ///< the engine takes no more
  kFailed,        ///< the session could not be brought back
};

struct Refusal {
  RefusalReason reason = RefusalReason::kInvalid;
  Error error;
  double retry_after_seconds = 0;  ///< an estimate, for kFull
};

struct TurnControl;

/// An admitted turn. Threads: any. Outlives the engine safely.
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::shared_ptr<TurnControl> control) : control_(std::move(control)) {}
  /// Ends the turn before its next token or piece of prompt; nothing if it has ended.
  void cancel();
  bool done() const;
  /// Returns after on_end did. Not from a callback.
  void wait() const;

 private:
  std::shared_ptr<TurnControl> control_;
};

/// What submit() answers: a handle, or why not.
struct Submission {
  Handle handle{};
  std::optional<Refusal> refusal{};
  bool admitted() const { return !refusal.has_value(); }
};

}  // namespace tarn::serve
