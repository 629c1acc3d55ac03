#include "serve/session_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "runtime/snapshot.h"
#include "serve/session_entry.h"

namespace tarn::serve {

using runtime::Session;

namespace {

Error conflict(std::string message, const std::string& id) {
  return {ErrorCode::kConflict, std::move(message), "session " + id};
}

Status check_id(const std::string& id) {
  constexpr size_t kMaxBytes = 128;
  const bool good = !id.empty() && id.size() <= kMaxBytes && id.front() != '.' &&
                    std::all_of(id.begin(), id.end(), [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
                    });
  if (good) return {};
  return invalid_argument(
      "a session's id must be 1 to 128 of letters, digits, '.', '_' and '-' and not start with a "
      "dot",
      "session");
}

}  // namespace

SessionTable::Lease& SessionTable::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    release();
    table_ = std::exchange(other.table_, nullptr);
    entry_ = std::move(other.entry_);
    held_ = std::exchange(other.held_, false);
  }
  return *this;
}

bool SessionTable::Lease::try_hold() {
  if (held_ || table_ == nullptr) return held_;
  const Lock lock(table_->mutex_);
  if (entry_->use != Entry::Use::kFree) return false;
  entry_->use = Entry::Use::kHeld;
  --entry_->waiters;
  held_ = true;
  return true;
}

void SessionTable::Lease::release() {
  if (table_ == nullptr) return;
  SessionTable& table = *std::exchange(table_, nullptr);
  const Lock lock(table.mutex_);
  if (held_) {
    table.update_figures(*entry_);
    entry_->use = Entry::Use::kFree;
    held_ = false;
  } else {
    --entry_->waiters;
  }
  if (entry_->use == Entry::Use::kFree && entry_->waiters == 0) table.set_idle(entry_, true);
  entry_.reset();
  if (table.limit_ > 0 && table.resident_bytes_ > table.limit_) table.over_.notify_one();
}

Session& SessionTable::Lease::session() {
  TARN_CHECK(held_);
  return *entry_->session;
}

runtime::SamplerOptions& SessionTable::Lease::sampler() {
  TARN_CHECK(held_);
  return entry_->sampler;
}

const std::shared_ptr<void>& SessionTable::Lease::companion() const {
  TARN_CHECK(held_);
  return entry_->companion;
}

Status SessionTable::Lease::replace(runtime::RestoredSession restored,
                                    std::shared_ptr<void> companion) {
  TARN_CHECK(held_);
  Entry& entry = *entry_;
  const int64_t more = bytes_of(restored.session) - entry.bytes;
  if (more > 0) {
    Lock lock(table_->mutex_);
    TARN_RETURN_IF_ERROR(table_->take_room(more, lock));
    entry.bytes += more;
  }
  entry.session = std::move(restored.session);
  entry.sampler = restored.sampler;
  entry.companion = std::move(companion);
  entry.marks.clear();
  return {};
}

void SessionTable::Lease::discard() {
  TARN_CHECK(held_);
  SessionTable& table = *std::exchange(table_, nullptr);
  held_ = false;
  const std::shared_ptr<Entry> entry = std::move(entry_);
  {
    const Lock lock(table.mutex_);
    TARN_CHECK(entry->waiters == 0);
    table.resident_bytes_ -= entry->bytes;
    table.entries_.erase(entry->id);
  }
  table.moved_.notify_all();  // memory is free
}

/// The entry of `id`, if any, once it is not on its way.
std::shared_ptr<SessionTable::Entry> SessionTable::find_settled(const std::string& id, Lock& lock) {
  auto found = entries_.find(id);
  while (found != entries_.end() && found->second->use == Entry::Use::kMoving) {
    moved_.wait(lock);
    found = entries_.find(id);
  }
  return found == entries_.end() ? nullptr : found->second;
}

/// A lease of an entry that is not on its way.
Result<SessionTable::Lease> SessionTable::hold(const std::shared_ptr<Entry>& entry, bool wait,
                                               Lock& lock) {
  if (entry->use == Entry::Use::kHeld || entry->waiters > 0) {
    if (!wait) return conflict("is in use by another turn or call", entry->id);
    ++entry->waiters;
    return Lease(this, entry, false);
  }
  if (!entry->resident) {
    TARN_RETURN_IF_ERROR(bring_back(entry, lock));
  } else {
    set_idle(entry, false);
    entry->use = Entry::Use::kHeld;
  }
  return Lease(this, entry, true);
}

Result<SessionTable::Lease> SessionTable::claim(const std::string& id, bool wait) {
  TARN_RETURN_IF_ERROR(check_id(id));
  Lock lock(mutex_);
  std::shared_ptr<Entry> entry = find_settled(id, lock);
  if (entry == nullptr) {
    entry = std::make_shared<Entry>();
    entry->id = id;
    entry->use = Entry::Use::kFree;
    entries_.emplace(id, entry);
  }
  return hold(entry, wait, lock);
}

Result<SessionTable::Lease> SessionTable::claim_resident(const std::string& id) {
  Lock lock(mutex_);
  const std::shared_ptr<Entry> entry = find_settled(id, lock);
  if (entry != nullptr && entry->resident) return hold(entry, false, lock);
  return Error{ErrorCode::kNotFound, "is not in memory", "session " + id};
}

std::optional<SessionInfo> SessionTable::find_resident(const std::string& id) const {
  const Lock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || !found->second->resident) return std::nullopt;
  return describe(*found->second);
}

Result<SessionInfo> SessionTable::insert(const std::string& id, Session session,
                                         const runtime::SamplerOptions& sampler) {
  Lock lock(mutex_);
  if (entries_.contains(id)) return conflict("exists already", id);
  auto entry = std::make_shared<Entry>();
  entry->id = id;
  entries_.emplace(id, entry);
  const int64_t bytes = bytes_of(session);
  const Status room = take_room(bytes, lock);
  if (!room.ok()) {
    entries_.erase(id);
    moved_.notify_all();
    return room.error();
  }
  entry->bytes = bytes;
  entry->session = std::move(session);
  entry->sampler = sampler;
  entry->resident = true;
  entry->known = true;
  entry->use = Entry::Use::kHeld;
  moved_.notify_all();
  lock.unlock();
  return finish(Lease(this, std::move(entry), true));
}

Result<SessionInfo> SessionTable::finish(Lease lease) {
  const std::shared_ptr<Entry> entry = lease.entry_;
  lease.release();
  const Lock lock(mutex_);
  return describe(*entry);
}

Result<SessionInfo> SessionTable::create(const std::string& id, uint64_t seed) {
  const Result<Lease> existing = claim(id);
  if (existing.ok()) return conflict("exists already", id);
  if (existing.error().code != ErrorCode::kNotFound) return existing.error();
  return insert(id, Session(model_, {seed, 0, false}), {});
}

std::vector<SessionInfo> SessionTable::list() const {
  const Lock lock(mutex_);
  std::vector<SessionInfo> all;
  for (const auto& [id, entry] : entries_) {
    if (entry->known) all.push_back(describe(*entry));
  }
  return all;
}

Result<SessionInfo> SessionTable::info(const std::string& id) {
  {
    const Lock lock(mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end() && found->second->known) return describe(*found->second);
  }
  TARN_ASSIGN(Lease lease, claim(id));
  return finish(std::move(lease));
}

Result<SessionInfo> SessionTable::fork(const std::string& from, const std::string& to,
                                       std::optional<uint64_t> stream) {
  TARN_RETURN_IF_ERROR(check_id(to));
  TARN_ASSIGN(Lease lease, claim(from));
  const Result<Lease> existing = claim(to);
  if (existing.ok()) return conflict("exists already", to);
  if (existing.error().code != ErrorCode::kNotFound) return existing.error();
  Session copy = stream ? lease.session().fork(*stream) : lease.session().clone();
  return insert(to, std::move(copy), lease.sampler());
}

Result<SessionInfo> SessionTable::mark(const std::string& id, const std::string& name) {
  TARN_ASSIGN(Lease lease, claim(id));
  Entry& entry = *lease.entry_;
  std::erase_if(entry.marks, [&](const Entry::Mark& mark) { return mark.name == name; });
  if (entry.marks.size() >= kMaxMarks) {
    return Error{ErrorCode::kResource,
                 "has " + std::to_string(kMaxMarks) + " marks, no more are kept", "session " + id};
  }
  const int64_t bytes = bytes_of(lease.session());
  {
    Lock lock(mutex_);
    TARN_RETURN_IF_ERROR(take_room(bytes, lock));
    entry.bytes += bytes;
  }
  entry.marks.push_back({name, lease.session().mark()});
  return finish(std::move(lease));
}

Result<SessionInfo> SessionTable::rollback(const std::string& id, const std::string& name) {
  TARN_ASSIGN(Lease lease, claim(id));
  const auto& marks = lease.entry_->marks;
  for (size_t i = 0; i < marks.size(); ++i) {
    if (marks[i].name == name) return rollback_to(std::move(lease), i);
  }
  return Error{ErrorCode::kNotFound, "has no such mark", "session " + id};
}

Result<SessionInfo> SessionTable::rollback(const std::string& id, int64_t tokens) {
  TARN_ASSIGN(Lease lease, claim(id));
  const auto& marks = lease.entry_->marks;
  for (size_t i = marks.size(); i-- > 0;) {
    if (marks[i].session.token_count() == tokens) return rollback_to(std::move(lease), i);
  }
  return Error{ErrorCode::kNotFound, "has no mark at " + std::to_string(tokens) + " tokens",
               "session " + id};
}

Result<SessionInfo> SessionTable::rollback_to(Lease lease, size_t mark) {
  Entry& entry = *lease.entry_;
  entry.session->rollback(entry.marks[mark].session);
  const int64_t tokens = entry.session->token_count();
  std::erase_if(entry.marks,
                [&](const Entry::Mark& m) { return m.session.token_count() > tokens; });
  return finish(std::move(lease));
}

Result<std::string> SessionTable::snapshot(const std::string& id) {
  TARN_ASSIGN(Lease lease, claim(id));
  return runtime::encode_snapshot(lease.session(), lease.sampler());
}

Result<SessionInfo> SessionTable::restore(const std::string& id, std::string_view bytes) {
  TARN_RETURN_IF_ERROR(check_id(id));
  TARN_ASSIGN(runtime::RestoredSession restored,
              runtime::decode_snapshot(bytes, model_, "session " + id));
  Result<Lease> existing = claim(id);
  if (!existing.ok() && existing.error().code == ErrorCode::kNotFound) {
    return insert(id, std::move(restored.session), restored.sampler);
  }
  TARN_ASSIGN(Lease lease, std::move(existing));
  TARN_RETURN_IF_ERROR(lease.replace(std::move(restored), lease.companion()));
  return finish(std::move(lease));
}

Status SessionTable::remove(const std::string& id) {
  TARN_RETURN_IF_ERROR(check_id(id));
  Lock lock(mutex_);
  const std::shared_ptr<Entry> entry = find_settled(id, lock);
  if (entry == nullptr) {
    lock.unlock();
    TARN_ASSIGN(Lease lease, claim(id));  // the hooks may know it
    lease.release();
    return remove(id);
  }
  if (entry->use == Entry::Use::kHeld || entry->waiters > 0) {
    return conflict("is in use by another turn or call", id);
  }
  set_idle(entry, false);
  entry->use = Entry::Use::kMoving;
  lock.unlock();
  const Status status = hooks_.forget(id);
  lock.lock();
  if (status.ok()) {
    resident_bytes_ -= entry->bytes;
    entries_.erase(id);
  } else {
    entry->use = Entry::Use::kFree;
    set_idle(entry, true);
  }
  moved_.notify_all();
  return status;
}

SessionInfo SessionTable::describe(const Entry& entry) const {
  SessionInfo info = entry.figures;
  info.id = entry.id;
  info.resident = entry.resident;
  info.in_use = entry.use == Entry::Use::kHeld || entry.waiters > 0;
  return info;
}

}  // namespace tarn::serve
