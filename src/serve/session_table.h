#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "runtime/session.h"
#include "runtime/snapshot.h"

namespace tarn::serve {

/// A session outside the table: snapshots of it and of its marks, oldest first.
struct StoredSession {
  struct Mark {
    std::string name;
    std::string snapshot;
  };
  std::string snapshot;
  std::vector<Mark> marks;
  /// Of the hooks' owner: fetch gives it, the table keeps it while the session is in memory
  /// (SessionTable::Lease::companion), evict gets it back.
  std::shared_ptr<void> companion{};
};

/// Where sessions go that do not fit the memory. Called without locks, from the thread of whoever
/// needs room or the session, never for one id at once, and never from the engine's thread.
struct SessionHooks {
  std::function<Status(const std::string& id, StoredSession session)> evict;
  /// kNotFound for an id that it does not have.
  std::function<Result<StoredSession>(const std::string& id)> fetch;
  /// The session was removed; success too when nothing was stored.
  std::function<Status(const std::string& id)> forget;
  /// Fetch knows every session there is: the table remembers only those in memory.
  bool knows_all = false;
};
/// Keeps evicted sessions as bytes in this process.
SessionHooks hooks_in_memory();

struct SessionInfo {
  std::string id;
  int64_t token_count = 0;
  int64_t position = 0;     ///< inputs evaluated
  int64_t state_bytes = 0;  ///< used by the state, marks excluded
  bool resident = false;    ///< in memory
  bool in_use = false;      ///< a turn or another call has it: the numbers are those from before
  std::vector<std::pair<std::string, int64_t>> marks;  ///< name, tokens at the mark; oldest first
  std::chrono::system_clock::time_point last_use{};
};

/// Sessions by id, each used by one owner at a time, within a limit of memory: the least recently
/// used ones leave through the hooks and come back when they are asked for. Calls on a session that
/// is in use, or that a turn waits for, give kConflict; an id that is nowhere gives kNotFound.
/// Threads: any. Calls may wait for hooks.
class SessionTable {
  struct Entry;

 public:
  /// `memory_limit_bytes` of states, marks and running turns; 0: none.
  SessionTable(std::shared_ptr<const model::Model> model, SessionHooks hooks,
               int64_t memory_limit_bytes);
  ~SessionTable();
  SessionTable(const SessionTable&) = delete;
  SessionTable& operator=(const SessionTable&) = delete;

  /// A new session. Errors: an id that is not 1 to 128 of [A-Za-z0-9._-] or starts with a dot
  /// (kInvalidArgument), exists (kConflict), no room (kResource).
  Result<SessionInfo> create(const std::string& id, uint64_t seed);
  /// Those that this table has seen since it was made, by id.
  std::vector<SessionInfo> list() const;
  Result<SessionInfo> info(const std::string& id);
  /// A copy named `to`, without marks; `stream` gives it random numbers of its own.
  Result<SessionInfo> fork(const std::string& from, const std::string& to,
                           std::optional<uint64_t> stream);
  /// Remembers what the session is now, in place of an earlier mark of that name. At most kMaxMarks.
  Result<SessionInfo> mark(const std::string& id, const std::string& name);
  /// Back to a mark, random numbers included; marks at more tokens are gone.
  Result<SessionInfo> rollback(const std::string& id, const std::string& name);
  /// Back to the newest mark with that many tokens.
  Result<SessionInfo> rollback(const std::string& id, int64_t tokens);
  /// The session as bytes, marks excluded (docs/formats/snapshot.md).
  Result<std::string> snapshot(const std::string& id);
  /// Makes the session what a snapshot says, or makes a new one; marks are gone. Everything is checked
  /// before anything changes.
  Result<SessionInfo> restore(const std::string& id, std::string_view bytes);
  Status remove(const std::string& id);
  int64_t resident_bytes() const;

  static constexpr size_t kMaxMarks = 16;

  /// The right to use a session, or a place in the line for it: then it is kept in memory.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { release(); }
    bool held() const { return held_; }
    /// Takes the session if nobody has it; never waits.
    bool try_hold();
    void release();
    /// While held.
    runtime::Session& session();
    runtime::SamplerOptions& sampler();
    const std::shared_ptr<void>& companion() const;
    /// Makes the session another one; marks are gone. Errors: kResource, and nothing has changed.
    Status replace(runtime::RestoredSession restored, std::shared_ptr<void> companion);
    /// Releases the session, which leaves the memory; no hook is called. Not while others wait.
    void discard();

   private:
    friend class SessionTable;
    Lease(SessionTable* table, std::shared_ptr<Entry> entry, bool held)
        : table_(table), entry_(std::move(entry)), held_(held) {}
    SessionTable* table_ = nullptr;
    std::shared_ptr<Entry> entry_;
    bool held_ = false;
  };
  /// `wait`: a session in use gives a lease that is not held yet instead of kConflict.
  Result<Lease> claim(const std::string& id, bool wait = false);
  /// Of a session in memory; kNotFound for others.
  Result<Lease> claim_resident(const std::string& id);
  /// Of a session in memory, else nothing. Never waits for hooks.
  std::optional<SessionInfo> find_resident(const std::string& id) const;

  /// Counts memory of a running turn. kResource when that and what is in use exceed the limit; idle
  /// sessions are evicted soon after. Never waits for hooks.
  Status charge(int64_t bytes);
  void discharge(int64_t bytes);
  /// Memory that a session takes.
  static int64_t bytes_of(const runtime::Session& session);

 private:
  using Lock = std::unique_lock<std::mutex>;
  Result<SessionInfo> insert(const std::string& id, runtime::Session session,
                             const runtime::SamplerOptions& sampler);
  Result<SessionInfo> finish(Lease lease);
  Result<SessionInfo> rollback_to(Lease lease, size_t mark);
  Result<Lease> hold(const std::shared_ptr<Entry>& entry, bool wait, Lock& lock);
  std::shared_ptr<Entry> find_settled(const std::string& id, Lock& lock);
  Status bring_back(const std::shared_ptr<Entry>& entry, Lock& lock);
  /// Evicts until `bytes` more fit, and counts them.
  Status take_room(int64_t bytes, Lock& lock);
  Status evict_oldest(Lock& lock);
  Error no_room(int64_t bytes, int64_t in_use) const;
  void set_idle(const std::shared_ptr<Entry>& entry, bool idle);
  SessionInfo describe(const Entry& entry) const;
  void update_figures(Entry& entry);
  void evict_in_background();

  const std::shared_ptr<const model::Model> model_;
  const SessionHooks hooks_;
  const int64_t limit_;
  mutable std::mutex mutex_;
  std::condition_variable moved_;  // an entry is no longer on its way in or out
  std::condition_variable over_;   // the evictor may have work
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  std::list<std::shared_ptr<Entry>> idle_;  // resident and free, the least recently used first
  int64_t resident_bytes_ = 0;
  int64_t idle_bytes_ = 0;
  int64_t moving_out_ = 0;  // entries that are being evicted
  bool stopping_ = false;
  std::thread evictor_;
};

}  // namespace tarn::serve
