#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "serve/engine.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/service/saved_session.h"
#include "serve/store.h"

namespace tarn::serve {

struct ServiceOptions {
  EngineOptions engine{};  ///< without hooks: evicted sessions go to the store
  /// Of this server in leases: 1 to 64 printable characters without spaces, the same after a
  /// restart if that should get at its sessions at once. Empty: made from host, process and chance.
  std::string owner{};
  int64_t lease_seconds = 30;   ///< renewed every third of it; another server waits so long at most
  int io_threads = 4;           ///< that save turns
  size_t idempotency_keys = 8;  ///< results kept with each session, the newest; 0: none
  int64_t idempotency_seconds = 86400;   ///< and for how long
  int64_t expiry_interval_seconds = 60;  ///< between looks for sessions whose time is over; 0: none
  int64_t session_wait_seconds = 30;     ///< for a turn with wait_for_session, see submit()
  /// Milliseconds since 1970; the system's clock when empty. Expiry and the age of results go by it.
  std::function<int64_t()> now_ms{};
};

/// What create() makes.
struct NewSession {
  std::string id{};                ///< empty: one is made up
  std::optional<uint64_t> seed{};  ///< of its random numbers; empty: chosen by chance
  int64_t ttl_ms = 0;              ///< expires so long after its last use; 0: never
  SavePolicy policy = SavePolicy::kTurn;
};

/// A session as the store and this server know it. Times are milliseconds since 1970.
struct SessionView {
  std::string id;
  int64_t seq = 0;            ///< newest version in the store
  int64_t token_count = 0;    ///< of that version, or of the turns that wait for a save
  int64_t state_bytes = 0;    ///< that the session's state takes in memory
  int64_t payload_bytes = 0;  ///< of the newest version in the store
  bool resident = false;      ///< in this server's memory
  bool in_use = false;        ///< a turn has it, here or on another server
  bool unsaved = false;       ///< SavePolicy::kManual: holds turns that the store does not have
  std::vector<KeptVersion> versions;  ///< that can be rolled back to or forked, oldest first
  int64_t created_ms = 0;
  int64_t last_use_ms = 0;
  int64_t expires_ms = 0;  ///< 0: never
  Durability durability = Durability::kMemory;
  uint64_t model_fingerprint = 0;
};

struct SessionViewPage {
  std::vector<SessionView> sessions;  ///< by id
  std::string next;                   ///< token of the next page; empty: this was the last
};

/// How a turn ended, after everything that had to be saved is saved.
struct TurnResult {
  TurnEnd end{};    ///< kError with the store's error when the save failed: then the turn is undone
  int64_t seq = 0;  ///< newest version after the turn; 0 without a session
  bool saved = false;                           ///< the turn is part of version `seq`
  Durability durability = Durability::kMemory;  ///< of that version
  bool replayed = false;  ///< nothing was computed: an earlier turn with this key had this result
};

struct SessionTurn {
  /// What the engine shall do. `on_end` must be empty; `on_token` is called from one thread at a
  /// time, not always the same.
  Request request{};
  /// The prompt begins behind a blank line: the line breaks that the session's text lacks of one go
  /// before it, none if the session is empty.
  bool after_blank_line = false;
  std::optional<int64_t> if_seq{};  ///< refuse unless this is the session's newest version
  /// 1 to kMaxKeyBytes printable characters. The second turn with one key on one session
  /// is answered with the first one's tokens and result, if it is the same request (prompt, sampler,
  /// seed, stop strings, max_tokens, log_probs).
  std::optional<std::string> idempotency_key{};
  /// Once for every turn that was admitted; must return soon and not throw. May call cancel().
  std::function<void(const TurnResult&)> on_end{};
};

/// Refusal::error.where of a key that belongs to another request, and of if_seq.
inline constexpr const char* kKeyConflict = "idempotency_key";
inline constexpr const char* kIfSeqConflict = "if_seq";
/// The same of turns that were not saved before another server changed the session.
inline constexpr const char* kLostTurns = "lost_turns";

struct RunningTurn;

/// An admitted turn. Threads: any. Outlives the service safely.
class TurnHandle {
 public:
  TurnHandle() = default;
  explicit TurnHandle(std::shared_ptr<RunningTurn> turn) : turn_(std::move(turn)) {}
  /// Ends the turn before its next token or piece of prompt and leaves the session as it was;
  /// nothing if its last token has been drawn.
  void cancel();
  bool done() const;
  /// Returns after on_end did. Not from a callback.
  void wait() const;

 private:
  std::shared_ptr<RunningTurn> turn_;
};

struct TurnSubmission {
  TurnHandle handle{};
  std::optional<Refusal> refusal{};
  bool admitted() const { return !refusal.has_value(); }
};

/// What the service counts since it was made. Threads: any.
struct ServiceMetrics {
  std::atomic<int64_t> refused{0};  ///< turns, for whatever reason
  std::atomic<int64_t> saves{0};
  std::atomic<int64_t> failed_saves{0};
  std::atomic<int64_t> saved_bytes{0};
  std::atomic<int64_t> loads{0};  ///< versions read from the store
  std::atomic<int64_t> stale{0};  ///< copies in memory that another server had gone past
  std::atomic<int64_t> replayed{0};
  std::atomic<int64_t> evicted{0};
  std::atomic<int64_t> expired{0};
  std::atomic<int64_t> lost_leases{0};
  std::atomic<int64_t> unsaved_sessions{0};  ///< gauge
  Histogram save_time;
  Histogram load_time;
};

/// Durable sessions: an Engine whose sessions live in a SessionStore.
///
/// Memory is a cache of the store. A turn takes the session's lease, learns with it the number of
/// the newest version, and reloads the session if another server has made that; so a session moves
/// between servers that share a store. The lease lasts for the turn and ends with its save, which is
/// a compare-and-swap on the version number. A turn's end is told when its tokens, the state and
/// its result are saved in one version; if that fails the turn is undone and reported as kError.
/// Cancelled and failed turns leave the session, its number and its bits as they were.
///
/// Calls on a session that another call or turn has give kConflict; ids that are nowhere, kNotFound;
/// the store's errors come through (store.h). Threads: any; calls may wait for the store, but
/// nothing waits for it on the engine's thread. What survives what: docs/operations.md; what a
/// version holds: docs/formats/session.md.
class SessionService {
 public:
  /// Errors: those of Engine::create, options out of range, hooks that are set.
  static Result<std::unique_ptr<SessionService>> create(std::shared_ptr<const model::Model> model,
                                                        ServiceOptions options,
                                                        std::unique_ptr<SessionStore> store);
  /// Cancels what runs, saves what is unsaved.
  ~SessionService();
  SessionService(const SessionService&) = delete;
  SessionService& operator=(const SessionService&) = delete;

  /// A session of no tokens, saved as its first version. Errors: kConflict, the id exists.
  Result<SessionView> create_session(const NewSession& session);
  Result<SessionView> get(const std::string& id);
  /// At most `limit` (1 to 1000) after `page_token`.
  Result<SessionViewPage> list(std::string_view page_token, int limit);
  Status remove(const std::string& id);
  /// Session `new_id` (empty: made up) from version `seq`, or from what the session is now, which
  /// another server may have (kConflict at kLeaseConflict). It continues with the same random numbers
  /// unless a turn brings a seed.
  Result<SessionView> fork(const std::string& id, std::optional<int64_t> seq,
                           const std::string& new_id);
  /// Makes an older version the newest, under a new number; unsaved turns are dropped.
  Result<SessionView> rollback(const std::string& id, int64_t seq);
  /// Saves the turns that are not saved, if any. Errors of this and the next two: kConflict at
  /// kLeaseConflict, another server has the session and may have turns that are not saved.
  Result<SessionView> save(const std::string& id);
  /// As save(), and the session leaves the memory.
  Result<SessionView> pause(const std::string& id);
  /// Brings the newest version into memory. Nothing is computed for it.
  Result<SessionView> resume(const std::string& id);

  /// How long another server holds the session unless it gives it back or renews its lease; 0: none
  /// does, as far as the store can tell.
  double lease_seconds(const std::string& id);

  /// Admits a turn or says why not; without a session the store has no part in it. Refusals are
  /// the engine's, and: kPrecondition for if_seq; kConflict while another server has the session
  /// (retry_after_seconds > 0), or with error.where == kKeyConflict; kFailed, an error of the store.
  /// With request.wait_for_session the call waits for a turn that has the session here, until the
  /// request's deadline or start_by, or session_wait_seconds.
  TurnSubmission submit(SessionTurn turn);

  struct Drained {
    int64_t cancelled = 0;  ///< turns that were still running at the deadline: undone
    int64_t saved = 0;      ///< sessions with unsaved turns that were saved
    int64_t failed = 0;     ///< and those that could not be
  };
  /// Takes no more turns, waits for those admitted and their saves, cancels what is left at the
  /// deadline, saves everything unsaved. Other calls still work.
  Drained drain(Clock::time_point deadline);

  struct Readiness {
    bool ready = true;
    std::string reason;  ///< why not, in one sentence
  };
  /// Whether turns with sessions can be served: not after a failed flush of the store, nor while its
  /// last operation failed (one is a read of this call's own, at most each second), nor in a drain.
  Readiness ready() const;

  const Metrics& engine_metrics() const;
  const ServiceMetrics& metrics() const;
  const std::shared_ptr<const model::Model>& model() const;
  Durability durability() const;
  int64_t resident_bytes() const;
  const std::string& owner() const;

 private:
  class Implementation;
  explicit SessionService(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tarn::serve
