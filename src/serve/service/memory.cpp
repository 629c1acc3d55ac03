// The half of the service that moves sessions between memory and store.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "runtime/snapshot.h"
#include "serve/service/implementation.h"

namespace tarn::serve {
namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Resident& SessionService::Implementation::resident(const Held& held) {
  return *static_cast<Resident*>(held.companion().get());
}

SessionHooks SessionService::Implementation::hooks() {
  SessionHooks hooks;
  hooks.knows_all = true;
  hooks.fetch = [this](const std::string& id) -> Result<StoredSession> {
    TARN_ASSIGN(const SessionRecord record, load(id, {}));
    const auto resident = std::make_shared<Resident>();
    TARN_ASSIGN(const std::string_view snapshot, read(record, resident.get()));
    return StoredSession{std::string(snapshot), {}, resident};
  };
  hooks.evict = [this](const std::string& id, const StoredSession& session) {
    return evict(id, session);
  };
  hooks.forget = [](const std::string&) { return Status(); };
  return hooks;
}

Result<SessionRecord> SessionService::Implementation::load(const std::string& id,
                                                           std::optional<int64_t> seq) {
  const Clock::time_point start = Clock::now();
  Result<SessionRecord> record = store_->load(id, engine_->model()->fingerprint(), seq);
  if (record.ok()) {
    metrics_.loads.fetch_add(1, std::memory_order_relaxed);
    metrics_.load_time.observe(seconds_since(start));
  }
  return record;
}

Result<std::string_view> SessionService::Implementation::read(const SessionRecord& record,
                                                              Resident* resident) const {
  const std::string where = "session " + record.id + ", version " + std::to_string(record.seq);
  TARN_ASSIGN(SavedSession saved, parse_saved_session(record.payload, where));
  if (saved.id != record.id) saved.results.clear();
  const int64_t vocabulary = engine_->model()->config().vocabulary;
  for (const KeyedResult& result : saved.results) {
    for (const int32_t token : result.tokens) {
      if (token >= vocabulary) return corrupt("has a token outside the vocabulary", where);
    }
  }
  resident->seq = record.seq;
  resident->ttl_ms = record.ttl_ms;
  resident->token_count = record.token_count;
  resident->policy = saved.policy;
  resident->missing_breaks = saved.missing_breaks;
  resident->results = std::move(saved.results);
  return saved.snapshot;
}

/// Makes the copy in memory version `seq`. Its lease stays what it is.
Status SessionService::Implementation::reload(const std::string& id, Held& held, int64_t seq) {
  TARN_ASSIGN(const SessionRecord record, load(id, seq));
  Resident fresh;
  TARN_ASSIGN(const std::string_view snapshot, read(record, &fresh));
  TARN_ASSIGN(runtime::RestoredSession restored,
              runtime::decode_snapshot(snapshot, engine_->model(), "session " + id));
  TARN_RETURN_IF_ERROR(held.replace(std::move(restored), held.companion()));
  Resident& kept = resident(held);
  kept.seq = fresh.seq;
  kept.ttl_ms = fresh.ttl_ms;
  kept.token_count = fresh.token_count;
  kept.policy = fresh.policy;
  kept.missing_breaks = fresh.missing_breaks;
  kept.results = std::move(fresh.results);
  return {};
}

/// Saves what is in memory as the next version, which ends the lease.
Result<SaveResult> SessionService::Implementation::store_version(const std::string& id,
                                                                 const ResidentPointer& resident,
                                                                 std::string_view snapshot) {
  const Clock::time_point start = Clock::now();
  const std::string payload = encode_saved_session({.id = id,
                                                    .policy = resident->policy,
                                                    .missing_breaks = resident->missing_breaks,
                                                    .results = resident->results,
                                                    .snapshot = snapshot});
  TARN_ASSIGN(const int64_t token, leases_.retire(id, *resident));
  SaveRequest request;
  request.id = id;
  request.expected_seq = resident->seq;
  request.fencing_token = token;
  request.release_lease = true;
  request.token_count = resident->token_count;
  request.model_fingerprint = engine_->model()->fingerprint();
  request.ttl_ms = resident->ttl_ms;
  request.payload = payload;
  Result<SaveResult> saved = store_->save(request);
  if (!saved.ok()) {
    // A session that is there already is a mistake of whoever makes it anew.
    const bool exists = request.expected_seq == 0 && saved.error().where == kSeqConflict;
    if (!exists) metrics_.failed_saves.fetch_add(1, std::memory_order_relaxed);
    // Whoever called decides what becomes of the lease.
    const bool lost = saved.error().code == ErrorCode::kConflict;
    leases_.resume(id, resident, lost ? 0 : token);
    return saved;
  }
  metrics_.saves.fetch_add(1, std::memory_order_relaxed);
  metrics_.saved_bytes.fetch_add(static_cast<int64_t>(payload.size()), std::memory_order_relaxed);
  metrics_.save_time.observe(seconds_since(start));
  resident->seq = saved->seq;
  resident->unsaved = false;
  return saved;
}

Status SessionService::Implementation::save_held(const std::string& id, Held& held) {
  const auto resident = std::static_pointer_cast<Resident>(held.companion());
  if (!resident->unsaved) return {};
  const std::string snapshot = runtime::encode_snapshot(held.session(), held.sampler());
  const Result<SaveResult> saved = store_version(id, resident, snapshot);
  return saved.ok() ? Status() : Status(saved.error());
}

Status SessionService::Implementation::evict(const std::string& id, const StoredSession& session) {
  const auto resident = std::static_pointer_cast<Resident>(session.companion);
  if (resident->unsaved) {
    const Result<SaveResult> saved = store_version(id, resident, session.snapshot);
    if (!saved.ok() && saved.error().code != ErrorCode::kConflict) return saved.error();
    if (!saved.ok()) {
      log_message(LogLevel::kWarning, "turns are lost: " + saved.error().to_string());
      drop_lease(id, *resident);
    }
  }
  metrics_.evicted.fetch_add(1, std::memory_order_relaxed);
  return {};
}

/// Gives up the lease of a copy that counts for nothing any more.
void SessionService::Implementation::drop_lease(const std::string& id, Resident& resident) {
  resident.unsaved = false;
  const Status released = leases_.release(id, resident);
  if (!released.ok()) log_message(LogLevel::kInfo, released.error().to_string());
}

void SessionService::Implementation::let_go(Held held, bool leaves) {
  if (leaves) {
    held.discard();
  } else {
    held.release();
  }
  {
    const std::lock_guard lock(mutex_);
    ++given_back_;
  }
  changed_.notify_all();
}

Result<StoredInfo> SessionService::Implementation::info_unless_leased(const std::string& id) {
  TARN_ASSIGN(StoredInfo info, store_->info(id));
  if (info.lease_owner.empty() || info.lease_owner == owner()) return info;
  return held_elsewhere(id, info.lease_until_ms - now());
}

SessionView SessionService::Implementation::view(const StoredInfo& info) {
  SessionView view;
  view.id = info.id;
  view.seq = info.seq;
  view.token_count = info.token_count;
  view.payload_bytes = info.payload_bytes;
  view.versions = info.kept;
  view.created_ms = info.created_ms;
  view.last_use_ms = info.last_use_ms;
  view.expires_ms = info.expires_ms;
  view.model_fingerprint = info.model_fingerprint;
  view.in_use = !info.lease_owner.empty();
  const std::shared_ptr<SessionLease> lease = leases_.find(info.id);
  view.unsaved = lease != nullptr && lease->unsaved;
  view.durability = view.unsaved ? Durability::kMemory : store_->durability();
  if (const auto resident = engine_->sessions().find_resident(info.id)) {
    view.resident = true;
    view.state_bytes = resident->state_bytes;
    if (view.unsaved) view.token_count = resident->token_count;
    if (view.unsaved && info.lease_owner == owner()) view.in_use = resident->in_use;
  } else {
    view.state_bytes = runtime::SequenceState::used_bytes_at(*engine_->model(), view.token_count);
  }
  return view;
}

bool SessionService::Implementation::is_over(const std::string& id) {
  const Result<StoredInfo> info = store_->info(id);
  return info.ok() && info->expires_ms > 0 && info->expires_ms <= now();
}

void SessionService::Implementation::expire() {
  // Their leases keep the store from removing them.
  for (const std::string& id : leases_.unsaved()) {
    if (!is_over(id)) continue;
    const Status removed = write_versions(id, [&](int64_t token) -> Status {
      if (is_over(id)) return store_->remove(id, token);
      return Error{ErrorCode::kConflict, "is used again", "session " + id};
    });
    if (removed.ok()) {
      metrics_.expired.fetch_add(1, std::memory_order_relaxed);
    } else {
      log_message(LogLevel::kWarning, "cannot expire: " + removed.error().to_string());
    }
  }
  const Result<int64_t> expired = store_->expire(now());
  if (!expired.ok()) {
    log_message(LogLevel::kWarning, "cannot expire: " + expired.error().to_string());
    return;
  }
  // Whatever removed a session, here or on another server: its copy would stay for ever.
  for (const SessionInfo& copy : engine_->sessions().list()) {
    if (copy.in_use) continue;
    const Result<StoredInfo> info = store_->info(copy.id);
    if (info.ok() || info.error().code != ErrorCode::kNotFound) continue;
    Result<Held> held = engine_->sessions().claim_resident(copy.id);
    if (!held.ok()) continue;
    const bool unsaved = resident(*held).unsaved;
    let_go(std::move(*held), !unsaved);
  }
  metrics_.expired.fetch_add(*expired, std::memory_order_relaxed);
}

/// Renews leases and removes sessions whose time is over, until the service ends.
void SessionService::Implementation::maintain() {
  using Milliseconds = std::chrono::milliseconds;
  const Milliseconds renewal{options_.lease_seconds * 1000 / 3};
  const Milliseconds expiry{options_.expiry_interval_seconds * 1000};
  const Milliseconds period = expiry.count() > 0 ? std::min(renewal, expiry) : renewal;
  Clock::time_point next_expiry = Clock::now() + expiry;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, period, [this] { return stopping_; });
    if (stopping_) return;
    lock.unlock();
    leases_.renew_all();
    if (expiry.count() > 0 && Clock::now() >= next_expiry) {
      next_expiry = Clock::now() + expiry;
      this->expire();
    }
    lock.lock();
  }
}

}  // namespace tarn::serve
