#include "serve/service/leases.h"

#include <utility>

#include "base/log.h"

namespace tarn::serve {
namespace {

Error lost_lease(const std::string& id) {
  return {ErrorCode::kConflict, "another server has taken session " + id, kLeaseConflict};
}

}  // namespace

Result<Lease> Leases::renew(const std::string& id, SessionLease& lease, bool is_use) {
  if (lease.lost) return lost_lease(id);
  Result<Lease> renewed = store_.renew_lease(id, lease.token, seconds_, is_use);
  if (!renewed.ok() && renewed.error().code == ErrorCode::kConflict) {
    lease.lost = true;
    lost_.fetch_add(1, std::memory_order_relaxed);
  }
  return renewed;
}

Result<int64_t> Leases::take(const std::string& id, const std::shared_ptr<SessionLease>& lease) {
  const std::lock_guard guard(lease->mutex);
  if (lease->token != 0) {
    TARN_ASSIGN(const Lease renewed, renew(id, *lease, true));
    return renewed.seq;
  }
  TARN_ASSIGN(const Lease taken, store_.acquire_lease(id, owner_, seconds_));
  lease->token = taken.fencing_token;
  lease->lost = false;
  const std::lock_guard lock(mutex_);
  held_[id] = lease;
  return taken.seq;
}

void Leases::watch(SessionLease& lease, std::function<void()> on_lost) {
  const std::lock_guard guard(lease.mutex);
  lease.on_lost = std::move(on_lost);
}

Result<int64_t> Leases::retire(const std::string& id, SessionLease& lease) {
  const std::lock_guard guard(lease.mutex);
  lease.on_lost = nullptr;
  const int64_t token = std::exchange(lease.token, 0);
  const bool lost = std::exchange(lease.lost, false);
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  if (found != held_.end() && found->second.get() == &lease) held_.erase(found);
  if (lost) return lost_lease(id);
  return token;
}

void Leases::resume(const std::string& id, const std::shared_ptr<SessionLease>& lease,
                    int64_t token) {
  const std::lock_guard guard(lease->mutex);
  lease->token = token;
  const std::lock_guard lock(mutex_);
  held_[id] = lease;
}

Status Leases::release(const std::string& id, SessionLease& lease) {
  TARN_ASSIGN(const int64_t token, retire(id, lease));
  if (token == 0) return {};
  const Status released = store_.release_lease(id, token);
  if (!released.ok()) {
    log_message(LogLevel::kWarning, "a lease ends by itself: " + released.error().to_string());
  }
  return {};
}

void Leases::renew_all() {
  std::map<std::string, std::shared_ptr<SessionLease>> held;
  {
    const std::lock_guard lock(mutex_);
    held = held_;
  }
  for (const auto& [id, lease] : held) {
    std::function<void()> on_lost;
    {
      const std::lock_guard guard(lease->mutex);
      if (lease->token == 0 || lease->lost) continue;
      const Result<Lease> renewed = renew(id, *lease, false);
      if (renewed.ok()) continue;
      log_message(LogLevel::kWarning, "a lease was not renewed: " + renewed.error().to_string());
      if (lease->lost) on_lost = lease->on_lost;
    }
    if (on_lost) on_lost();
  }
}

std::shared_ptr<SessionLease> Leases::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  return found == held_.end() ? nullptr : found->second;
}

std::vector<std::string> Leases::unsaved() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, lease] : held_) {
    if (lease->unsaved) ids.push_back(id);
  }
  return ids;
}

}  // namespace tarn::serve
