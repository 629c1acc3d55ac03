#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "serve/service/leases.h"
#include "serve/service/session_service.h"
#include "serve/service/workers.h"

namespace tarn::serve {

/// What the service knows of a session in memory. Belongs to whoever holds the session in the
/// engine's table; it comes and goes with the session there.
struct Resident : SessionLease {
  int64_t seq = 0;  ///< the version that the copy in memory is, or continues when unsaved
  int64_t ttl_ms = 0;
  int64_t token_count = 0;
  SavePolicy policy = SavePolicy::kTurn;
  int missing_breaks = 0;  ///< see SavedSession
  std::vector<KeyedResult> results;
};

/// A turn on its way. The engine's thread has it until it queues finish(), then a worker; the mutex
/// guards what handles see.
struct RunningTurn {
  std::string id;  ///< empty: without a session
  SessionTable::Lease held;
  std::shared_ptr<Resident> resident;
  std::function<void(const TokenEvent&)> on_token;
  std::function<void(const TurnResult&)> on_end;
  KeyedResult keyed;  ///< to be remembered, if it has a key
  TurnResult result;
  int64_t tokens_before = 0;
  int missing_breaks = 0;  ///< after what the turn has read and drawn so far

  std::mutex mutex;
  std::condition_variable ended;
  Handle engine;
  bool cancelled = false;
  bool done = false;
};

class SessionService::Implementation {
 public:
  Implementation(ServiceOptions options, std::unique_ptr<SessionStore> store);
  Status start(std::shared_ptr<const model::Model> model);
  ~Implementation();

  Result<SessionView> create_session(const NewSession& session);
  Result<SessionView> get(const std::string& id);
  Result<SessionViewPage> list(std::string_view page_token, int limit);
  Status remove(const std::string& id);
  Result<SessionView> fork(const std::string& id, std::optional<int64_t> seq,
                           const std::string& new_id);
  Result<SessionView> rollback(const std::string& id, int64_t seq);
  /// save() and pause().
  Result<SessionView> save(const std::string& id, bool leaves);
  Result<SessionView> resume(const std::string& id);
  double lease_seconds(const std::string& id);
  TurnSubmission submit(SessionTurn turn);
  Drained drain(Clock::time_point deadline);
  Readiness ready() const;

  const Engine& engine() const { return *engine_; }
  const SessionStore& store() const { return *store_; }
  const ServiceMetrics& metrics();
  const std::string& owner() const { return leases_.owner(); }
  int64_t resident_bytes() const { return engine_->sessions().resident_bytes(); }

 private:
  using TurnPointer = std::shared_ptr<RunningTurn>;
  using ResidentPointer = std::shared_ptr<Resident>;
  using Held = SessionTable::Lease;
  int64_t now() const;
  static Resident& resident(const Held& held);

  // Between memory and store: memory.cpp.
  SessionHooks hooks();
  Result<SessionRecord> load(const std::string& id, std::optional<int64_t> seq);
  /// What a record holds: the snapshot, and the rest into `resident`.
  Result<std::string_view> read(const SessionRecord& record, Resident* resident) const;
  Status reload(const std::string& id, Held& held, int64_t seq);
  Result<SaveResult> store_version(const std::string& id, const ResidentPointer& resident,
                                   std::string_view snapshot);
  Status evict(const std::string& id, const StoredSession& session);
  void drop_lease(const std::string& id, Resident& resident);
  /// Saves unsaved turns; they stay unsaved on an error.
  Status save_held(const std::string& id, Held& held);
  /// Gives a session in memory up, for good if `leaves`.
  void let_go(Held held, bool leaves);
  SessionView view(const StoredInfo& info);
  /// What the store has of a session. Errors: kConflict, another server has it.
  Result<StoredInfo> info_unless_leased(const std::string& id);
  /// Lets `write` change a session's versions with the token of its lease, if this server holds it;
  /// then the copy in memory counts for nothing.
  Status write_versions(const std::string& id, const std::function<Status(int64_t)>& write);
  void maintain();
  /// Removes sessions whose time is over, and copies of sessions that are gone.
  void expire();
  /// Whether the store knows a session whose time is over, leased or not.
  bool is_over(const std::string& id);

  // Turns: turns.cpp.
  std::optional<Refusal> check(const SessionTurn& turn);
  TurnSubmission refused(Refusal refusal);
  TurnSubmission submit_alone(SessionTurn turn);
  Result<Held> claim(const Request& request);
  /// Takes the lease and makes the copy in memory the newest version; `stale` if it cannot be.
  std::optional<Refusal> prepare(RunningTurn& turn, bool* stale);
  /// The earlier turn with this turn's key, if there was one.
  std::optional<Refusal> find_result(RunningTurn& turn, bool* found) const;
  std::optional<Refusal> refuse_full(const RunningTurn& turn) const;
  void watch_breaks(SessionTurn& turn, RunningTurn& running) const;
  std::optional<Refusal> enter(Request request, const TurnPointer& turn);
  void give_up(RunningTurn& turn, bool stale);
  void replay(const TurnPointer& turn);
  void finish(const TurnPointer& turn);
  /// Makes a finished turn part of the session; false: it is undone.
  bool keep(RunningTurn& turn);
  void remember(RunningTurn& turn) const;
  void begin_turn();
  void tell_end(RunningTurn& turn);

  const ServiceOptions options_;
  const std::unique_ptr<SessionStore> store_;
  ServiceMetrics metrics_;
  Leases leases_;
  std::atomic<bool> draining_{false};
  mutable std::mutex probe_mutex_;
  mutable Clock::time_point next_probe_{};  ///< when ready() asks the store again

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t given_back_ = 0;  ///< how often a session was
  int64_t running_ = 0;      ///< turns with sessions that have not ended
  bool stopping_ = false;

  // In this order: each uses those before it until it ends.
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<Engine> engine_;
  std::thread maintenance_;
};

}  // namespace tarn::serve
