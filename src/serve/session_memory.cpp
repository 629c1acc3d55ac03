// The half of the session table that keeps it within its limit of memory.
#include <algorithm>
#include <string>
#include <utility>

#include "runtime/snapshot.h"
#include "serve/session_entry.h"
#include "serve/session_table.h"

namespace tarn::serve {

using runtime::Session;

SessionHooks hooks_in_memory() {
  struct Sessions {
    std::mutex mutex;
    std::map<std::string, StoredSession> all;
  };
  const auto sessions = std::make_shared<Sessions>();
  SessionHooks hooks;
  hooks.evict = [sessions](const std::string& id, StoredSession session) -> Status {
    const std::lock_guard lock(sessions->mutex);
    sessions->all[id] = std::move(session);
    return {};
  };
  hooks.fetch = [sessions](const std::string& id) -> Result<StoredSession> {
    const std::lock_guard lock(sessions->mutex);
    auto node = sessions->all.extract(id);
    if (node.empty()) return Error{ErrorCode::kNotFound, "is not stored", "session " + id};
    return std::move(node.mapped());
  };
  hooks.forget = [sessions](const std::string& id) -> Status {
    const std::lock_guard lock(sessions->mutex);
    sessions->all.erase(id);
    return {};
  };
  return hooks;
}

SessionTable::SessionTable(std::shared_ptr<const model::Model> model, SessionHooks hooks,
                           int64_t memory_limit_bytes)
    : model_(std::move(model)), hooks_(std::move(hooks)), limit_(memory_limit_bytes) {
  if (limit_ > 0) evictor_ = std::thread([this] { evict_in_background(); });
}

SessionTable::~SessionTable() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  over_.notify_all();
  if (evictor_.joinable()) evictor_.join();
}

/// Fetches an entry that is not resident; held afterwards. A failure leaves it as it was.
Status SessionTable::bring_back(const std::shared_ptr<Entry>& entry, Lock& lock) {
  entry->use = Entry::Use::kMoving;
  const auto fetch = [&]() -> Status {
    TARN_ASSIGN(const StoredSession stored, hooks_.fetch(entry->id));
    const std::string where = "session " + entry->id;
    TARN_ASSIGN(runtime::RestoredSession restored,
                runtime::decode_snapshot(stored.snapshot, model_, where));
    std::vector<Entry::Mark> marks;
    int64_t bytes = bytes_of(restored.session);
    for (const StoredSession::Mark& mark : stored.marks) {
      TARN_ASSIGN(runtime::RestoredSession at_mark,
                  runtime::decode_snapshot(mark.snapshot, model_, where + ", mark " + mark.name));
      bytes += bytes_of(at_mark.session);
      marks.push_back({mark.name, std::move(at_mark.session)});
    }
    lock.lock();
    const Status room = take_room(bytes, lock);
    lock.unlock();
    if (!room.ok()) {
      // A hook may have given its only copy away.
      StoredSession back = stored;
      TARN_RETURN_IF_ERROR(hooks_.evict(entry->id, std::move(back)));
      return room.error();
    }
    entry->bytes = bytes;
    entry->session = std::move(restored.session);
    entry->sampler = restored.sampler;
    entry->marks = std::move(marks);
    entry->companion = stored.companion;
    return {};
  };
  lock.unlock();
  const Status status = fetch();
  lock.lock();
  if (status.ok()) {
    entry->resident = true;
    entry->known = true;
    entry->use = Entry::Use::kHeld;
    update_figures(*entry);
  } else {
    entry->use = Entry::Use::kFree;
    if (!entry->known) entries_.erase(entry->id);
  }
  moved_.notify_all();
  if (!status.ok() && status.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kNotFound, "there is no such session", "session " + entry->id};
  }
  return status;
}

Status SessionTable::take_room(int64_t bytes, Lock& lock) {
  while (limit_ > 0 && resident_bytes_ + bytes > limit_) {
    if (!idle_.empty()) {
      TARN_RETURN_IF_ERROR(evict_oldest(lock));
    } else if (moving_out_ > 0) {
      moved_.wait(lock);
    } else {
      return no_room(bytes, resident_bytes_);
    }
  }
  resident_bytes_ += bytes;
  return {};
}

Error SessionTable::no_room(int64_t bytes, int64_t in_use) const {
  return {ErrorCode::kResource,
          "needs " + std::to_string(bytes) + " bytes of memory for states, " +
              std::to_string(in_use) + " of " + std::to_string(limit_) + " are in use",
          "sessions"};
}

Status SessionTable::evict_oldest(Lock& lock) {
  const std::shared_ptr<Entry> entry = idle_.front();
  set_idle(entry, false);
  entry->use = Entry::Use::kMoving;
  ++moving_out_;
  lock.unlock();
  StoredSession stored;
  stored.companion = entry->companion;
  stored.snapshot = runtime::encode_snapshot(*entry->session, entry->sampler);
  for (const Entry::Mark& mark : entry->marks) {
    stored.marks.push_back({mark.name, runtime::encode_snapshot(mark.session, entry->sampler)});
  }
  Status status = hooks_.evict(entry->id, std::move(stored));
  if (status.ok()) {
    entry->session.reset();
    entry->marks.clear();
    entry->companion.reset();
  }
  lock.lock();
  --moving_out_;
  entry->use = Entry::Use::kFree;
  if (status.ok()) {
    entry->resident = false;
    resident_bytes_ -= std::exchange(entry->bytes, 0);
    if (hooks_.knows_all) entries_.erase(entry->id);
  } else {
    set_idle(entry, true);
  }
  moved_.notify_all();
  return status;
}

void SessionTable::evict_in_background() {
  Lock lock(mutex_);
  while (true) {
    over_.wait(lock, [this] { return stopping_ || (resident_bytes_ > limit_ && !idle_.empty()); });
    if (stopping_) return;
    if (evict_oldest(lock).ok()) continue;
    // The hook failed, and the next call that needs room will say so: no hurry.
    over_.wait_for(lock, std::chrono::seconds(1), [this] { return stopping_; });
  }
}

Status SessionTable::charge(int64_t bytes) {
  const Lock lock(mutex_);
  const int64_t in_use = resident_bytes_ - idle_bytes_;
  if (limit_ > 0 && in_use + bytes > limit_) return no_room(bytes, in_use);
  resident_bytes_ += bytes;
  if (limit_ > 0 && resident_bytes_ > limit_) over_.notify_one();
  return {};
}

void SessionTable::discharge(int64_t bytes) {
  const Lock lock(mutex_);
  resident_bytes_ -= bytes;
}

void SessionTable::set_idle(const std::shared_ptr<Entry>& entry, bool idle) {
  if (entry->idle == idle || (idle && !entry->resident)) return;
  entry->idle = idle;
  if (idle) {
    entry->place = idle_.insert(idle_.end(), entry);
    idle_bytes_ += entry->bytes;
  } else {
    idle_.erase(entry->place);
    idle_bytes_ -= entry->bytes;
  }
}

int64_t SessionTable::resident_bytes() const {
  const Lock lock(mutex_);
  return resident_bytes_;
}

int64_t SessionTable::bytes_of(const Session& session) {
  const runtime::SequenceState& state = session.state();
  const auto words = static_cast<int64_t>(session.tokens().size() + session.output().size());
  return state.fixed_bytes() + state.capacity_tokens() * state.bytes_per_token() +
         words * static_cast<int64_t>(sizeof(float));
}

/// What its holder changed; the mutex is locked.
void SessionTable::update_figures(Entry& entry) {
  int64_t bytes = bytes_of(*entry.session);
  entry.figures.token_count = entry.session->token_count();
  entry.figures.position = entry.session->position();
  entry.figures.state_bytes = entry.session->state().used_bytes();
  entry.figures.last_use = std::chrono::system_clock::now();
  entry.figures.marks.clear();
  for (const Entry::Mark& mark : entry.marks) {
    bytes += bytes_of(mark.session);
    entry.figures.marks.emplace_back(mark.name, mark.session.token_count());
  }
  resident_bytes_ += bytes - entry.bytes;
  entry.bytes = bytes;
}

}  // namespace tarn::serve
