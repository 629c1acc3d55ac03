#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "serve/store.h"

namespace tarn::serve {

/// The lease of one session in memory. `unsaved` belongs to the session's holder, who alone changes
/// it, the rest to Leases.
struct SessionLease {
  /// The session holds turns that the store does not have; the lease lasts until it has.
  std::atomic<bool> unsaved{false};

  std::mutex mutex;
  int64_t token = 0;  ///< 0: there is no lease
  bool lost = false;  ///< another server has it
  std::function<void()> on_lost;
};

/// The leases that this server holds in a store, and their renewal. Threads: any; one call for one
/// session at a time, except renew_all(). Calls wait for the store.
class Leases {
 public:
  Leases(SessionStore& store, std::string owner, int64_t seconds)
      : store_(store), owner_(std::move(owner)), seconds_(seconds) {}

  /// Takes the lease of a session, or renews it if it is held. Returns the number of its newest
  /// version, 0: it does not exist. Errors: those of the store; kConflict, another server has it.
  Result<int64_t> take(const std::string& id, const std::shared_ptr<SessionLease>& lease);
  /// What to call, on the thread that renews, when another server takes the lease.
  static void watch(SessionLease& lease, std::function<void()> on_lost);
  /// Renews no more, so that the caller can write with the token and end the lease; 0 if there is
  /// none. Errors: kConflict, another server has it.
  Result<int64_t> retire(const std::string& id, SessionLease& lease);
  /// After a failed write with a retired token: the lease is held again, with the token (0: it is
  /// known but not held).
  void resume(const std::string& id, const std::shared_ptr<SessionLease>& lease, int64_t token);
  /// Ends the lease, if there is one. Errors: kConflict, another server has it; those of the store
  /// are logged only, as the lease ends by itself.
  Status release(const std::string& id, SessionLease& lease);
  void renew_all();

  /// The lease of a session, or null.
  std::shared_ptr<SessionLease> find(const std::string& id) const;
  /// Ids of sessions with unsaved turns.
  std::vector<std::string> unsaved() const;
  /// How many leases another server took.
  int64_t lost() const { return lost_.load(std::memory_order_relaxed); }

  const std::string& owner() const { return owner_; }

 private:
  /// Renews under the lease's mutex.
  Result<Lease> renew(const std::string& id, SessionLease& lease, bool is_use);

  SessionStore& store_;
  const std::string owner_;
  const int64_t seconds_;
  std::atomic<int64_t> lost_{0};
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<SessionLease>> held_;
};

}  // namespace tarn::serve
