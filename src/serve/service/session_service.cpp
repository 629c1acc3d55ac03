#include "serve/service/session_service.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <utility>

#include "base/frame.h"
#include "runtime/snapshot.h"
#include "serve/record.h"
#include "serve/service/implementation.h"

namespace tarn::serve {
namespace {

/// Looks at readiness cost the store one read in this time.
constexpr std::chrono::seconds kProbeInterval{1};

uint64_t random_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string random_id() { return hex(random_number()) + hex(random_number()); }

/// A name that no other server has.
std::string own_name() {
  std::array<char, 40> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {};
  const std::string rest = ":" + std::to_string(getpid()) + ":" + hex(random_number()).substr(0, 8);
  const std::string name = host.data() + rest;
  return is_lease_owner(name) ? name : "server" + rest;
}

ServiceOptions with_owner(ServiceOptions options) {
  if (options.owner.empty()) options.owner = own_name();
  return options;
}

Status check_options(const ServiceOptions& options) {
  const auto in_range = [](const char* name, int64_t value, int64_t low, int64_t high) -> Status {
    if (value >= low && value <= high) return {};
    return invalid_argument("is " + std::to_string(value) + ", wanted " + std::to_string(low) +
                                " to " + std::to_string(high),
                            name);
  };
  constexpr int64_t kYear = 366 * 86400;
  if (!options.owner.empty() && !is_lease_owner(options.owner)) {
    return invalid_argument("wanted 1 to 64 printable characters without spaces", "owner");
  }
  if (options.engine.hooks.fetch || options.engine.hooks.evict || options.engine.hooks.forget) {
    return invalid_argument("are set, but sessions are kept in the store", "hooks");
  }
  TARN_RETURN_IF_ERROR(in_range("lease_seconds", options.lease_seconds, 1, 86400));
  TARN_RETURN_IF_ERROR(in_range("io_threads", options.io_threads, 1, 256));
  TARN_RETURN_IF_ERROR(
      in_range("idempotency_keys", static_cast<int64_t>(options.idempotency_keys), 0, 1000));
  TARN_RETURN_IF_ERROR(in_range("idempotency_seconds", options.idempotency_seconds, 0, kYear));
  TARN_RETURN_IF_ERROR(
      in_range("expiry_interval_seconds", options.expiry_interval_seconds, 0, kYear));
  return in_range("session_wait_seconds", options.session_wait_seconds, 0, 86400);
}

Status check_id(const std::string& id) {
  if (is_session_id(id)) return {};
  return invalid_argument("is no session id: wanted 1 to 64 of the characters A-Z a-z 0-9 _ -",
                          "id");
}

}  // namespace

SessionService::Implementation::Implementation(ServiceOptions options,
                                               std::unique_ptr<SessionStore> store)
    : options_(with_owner(std::move(options))),
      store_(std::move(store)),
      leases_(*store_, options_.owner, options_.lease_seconds) {}

Status SessionService::Implementation::start(std::shared_ptr<const model::Model> model) {
  EngineOptions options = options_.engine;
  options.hooks = hooks();
  TARN_ASSIGN(engine_, Engine::create(std::move(model), std::move(options)));
  workers_ = std::make_unique<Workers>(options_.io_threads);
  maintenance_ = std::thread([this] { maintain(); });
  return {};
}

SessionService::Implementation::~Implementation() {
  if (engine_ == nullptr) return;
  drain(Clock::now());
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (maintenance_.joinable()) maintenance_.join();
}

int64_t SessionService::Implementation::now() const {
  if (options_.now_ms) return options_.now_ms();
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

Result<SessionView> SessionService::Implementation::create_session(const NewSession& session) {
  const std::string id = session.id.empty() ? random_id() : session.id;
  TARN_RETURN_IF_ERROR(check_id(id));
  const uint64_t seed = session.seed ? *session.seed : random_number();
  const std::string snapshot =
      runtime::encode_snapshot(runtime::Session(engine_->model(), {seed, 0, false}), {});
  const auto resident = std::make_shared<Resident>();
  resident->ttl_ms = session.ttl_ms;
  resident->policy = session.policy;
  const Result<SaveResult> saved = store_version(id, resident, snapshot);
  if (saved.ok()) return get(id);
  bool exists = saved.error().where == kSeqConflict;
  // A lease is told of first; those of sessions that are to be made are no reason to tell of them.
  if (saved.error().where == kLeaseConflict) exists = store_->info(id).ok();
  if (!exists) return saved.error();
  return Error{ErrorCode::kConflict, "exists already", "session " + id};
}

Result<SessionView> SessionService::Implementation::get(const std::string& id) {
  TARN_ASSIGN(const StoredInfo info, store_->info(id));
  return view(info);
}

Result<SessionViewPage> SessionService::Implementation::list(std::string_view page_token,
                                                             int limit) {
  TARN_ASSIGN(const SessionPage stored, store_->list(page_token, limit));
  SessionViewPage page;
  for (const StoredInfo& info : stored.sessions) page.sessions.push_back(view(info));
  page.next = stored.next;
  return page;
}

Status SessionService::Implementation::write_versions(const std::string& id,
                                                      const std::function<Status(int64_t)>& write) {
  TARN_RETURN_IF_ERROR(check_id(id));
  Result<Held> held = engine_->sessions().claim_resident(id);
  if (!held.ok()) {
    if (held.error().code != ErrorCode::kNotFound) return held.error();
    return write(0);
  }
  const auto resident = std::static_pointer_cast<Resident>(held->companion());
  const Result<int64_t> retired = leases_.retire(id, *resident);
  const int64_t token = retired.ok() ? *retired : 0;
  Status status = write(token);
  const bool gone = !status.ok() && status.error().code == ErrorCode::kNotFound;
  const bool done = status.ok() || (gone && !resident->unsaved);
  if (done) {
    resident->unsaved = false;
  } else if (resident->unsaved) {
    leases_.resume(id, resident, token);
  }
  let_go(std::move(*held), done);
  return status;
}

Status SessionService::Implementation::remove(const std::string& id) {
  return write_versions(id, [&](int64_t token) { return store_->remove(id, token); });
}

Result<SessionView> SessionService::Implementation::rollback(const std::string& id, int64_t seq) {
  TARN_RETURN_IF_ERROR(write_versions(id, [&](int64_t token) -> Status {
    TARN_ASSIGN(const SaveResult rolled, store_->rollback(id, seq, token));
    static_cast<void>(rolled);
    // Of unsaved turns; an error leaves a lease that ends by itself.
    if (token != 0) static_cast<void>(store_->release_lease(id, token));
    return {};
  }));
  return get(id);
}

Result<SessionView> SessionService::Implementation::fork(const std::string& id,
                                                         std::optional<int64_t> seq,
                                                         const std::string& new_id) {
  TARN_RETURN_IF_ERROR(check_id(id));
  const std::string target = new_id.empty() ? random_id() : new_id;
  if (!seq) {
    const std::shared_ptr<SessionLease> lease = leases_.find(id);
    if (lease != nullptr && lease->unsaved) {
      TARN_ASSIGN(const SessionView saved, save(id, false));
      seq = saved.seq;
    } else {
      TARN_ASSIGN(const StoredInfo info, info_unless_leased(id));
      seq = info.seq;
    }
  }
  TARN_ASSIGN(const SaveResult forked, store_->fork(id, *seq, target));
  static_cast<void>(forked);
  return get(target);
}

Result<SessionView> SessionService::Implementation::save(const std::string& id, bool leaves) {
  TARN_RETURN_IF_ERROR(check_id(id));
  Result<Held> held = engine_->sessions().claim_resident(id);
  if (!held.ok()) {
    if (held.error().code != ErrorCode::kNotFound) return held.error();
    TARN_ASSIGN(const StoredInfo info, info_unless_leased(id));
    return view(info);
  }
  if (!resident(*held).unsaved) {
    const Result<StoredInfo> info = info_unless_leased(id);
    let_go(std::move(*held), leaves || !info.ok());
    if (!info.ok()) return info.error();
    return view(*info);
  }
  const Status saved = save_held(id, *held);
  const bool lost = !saved.ok() && saved.error().code == ErrorCode::kConflict;
  if (lost) drop_lease(id, resident(*held));
  let_go(std::move(*held), lost || (leaves && saved.ok()));
  if (!saved.ok()) return saved.error();
  return get(id);
}

Result<SessionView> SessionService::Implementation::resume(const std::string& id) {
  TARN_RETURN_IF_ERROR(check_id(id));
  TARN_ASSIGN(Held held, engine_->sessions().claim(id));
  const Resident& copy = resident(held);
  const bool unsaved = copy.unsaved;
  const Result<StoredInfo> info = unsaved ? store_->info(id) : info_unless_leased(id);
  Status status = info.ok() ? Status() : Status(info.error());
  if (info.ok() && info->seq != copy.seq && !unsaved) status = reload(id, held, info->seq);
  let_go(std::move(held), !status.ok() && !unsaved);
  if (!status.ok()) return status.error();
  return view(*info);
}

double SessionService::Implementation::lease_seconds(const std::string& id) {
  const Result<StoredInfo> info = store_->info(id);
  if (!info.ok() || info->lease_owner.empty() || info->lease_owner == owner()) return 0;
  return static_cast<double>(std::max<int64_t>(0, info->lease_until_ms - now())) / 1000;
}

SessionService::Drained SessionService::Implementation::drain(Clock::time_point deadline) {
  draining_ = true;
  Drained drained;
  drained.cancelled = engine_->drain(deadline).cancelled;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0; });
  }
  for (const std::string& id : leases_.unsaved()) {
    Result<SessionView> saved = save(id, false);
    // Another call has it, for a moment.
    while (!saved.ok() && saved.error().code == ErrorCode::kConflict &&
           saved.error().where != kSeqConflict && saved.error().where != kLeaseConflict) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      saved = save(id, false);
    }
    ++(saved.ok() ? drained.saved : drained.failed);
  }
  return drained;
}

SessionService::Readiness SessionService::Implementation::ready() const {
  if (draining_) return {false, "the server is shutting down"};
  {
    // Whoever comes while another asks goes by what is known.
    const std::unique_lock lock(probe_mutex_, std::try_to_lock);
    if (lock.owns_lock() && Clock::now() >= next_probe_) {
      // The store notes whether it could be asked. One that failed may still answer reads alone.
      if (store_->state().failing) {
        const std::string id = "readiness-" + hex(std::hash<std::string>{}(owner()));
        static_cast<void>(store_->acquire_lease(id, owner(), 1));
      } else {
        static_cast<void>(store_->info("readiness"));
      }
      next_probe_ = Clock::now() + kProbeInterval;
    }
  }
  const StoreState state = store_->state();
  if (state.read_only) return {false, "the store is read-only: " + state.reason};
  if (state.failing) return {false, state.reason};
  return {};
}

const ServiceMetrics& SessionService::Implementation::metrics() {
  metrics_.lost_leases = leases_.lost();
  metrics_.unsaved_sessions = static_cast<int64_t>(leases_.unsaved().size());
  return metrics_;
}

Result<std::unique_ptr<SessionService>> SessionService::create(
    std::shared_ptr<const model::Model> model, ServiceOptions options,
    std::unique_ptr<SessionStore> store) {
  TARN_RETURN_IF_ERROR(check_options(options));
  auto implementation = std::make_unique<Implementation>(std::move(options), std::move(store));
  TARN_RETURN_IF_ERROR(implementation->start(std::move(model)));
  return std::unique_ptr<SessionService>(new SessionService(std::move(implementation)));
}

SessionService::SessionService(std::unique_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
SessionService::~SessionService() = default;

Result<SessionView> SessionService::create_session(const NewSession& session) {
  return implementation_->create_session(session);
}
Result<SessionView> SessionService::get(const std::string& id) { return implementation_->get(id); }
Result<SessionViewPage> SessionService::list(std::string_view page_token, int limit) {
  return implementation_->list(page_token, limit);
}
Status SessionService::remove(const std::string& id) { return implementation_->remove(id); }
Result<SessionView> SessionService::fork(const std::string& id, std::optional<int64_t> seq,
                                         const std::string& new_id) {
  return implementation_->fork(id, seq, new_id);
}
Result<SessionView> SessionService::rollback(const std::string& id, int64_t seq) {
  return implementation_->rollback(id, seq);
}
Result<SessionView> SessionService::save(const std::string& id) {
  return implementation_->save(id, false);
}
Result<SessionView> SessionService::pause(const std::string& id) {
  return implementation_->save(id, true);
}
Result<SessionView> SessionService::resume(const std::string& id) {
  return implementation_->resume(id);
}
double SessionService::lease_seconds(const std::string& id) {
  return implementation_->lease_seconds(id);
}
TurnSubmission SessionService::submit(SessionTurn turn) {
  return implementation_->submit(std::move(turn));
}
SessionService::Drained SessionService::drain(Clock::time_point deadline) {
  return implementation_->drain(deadline);
}
SessionService::Readiness SessionService::ready() const { return implementation_->ready(); }
const Metrics& SessionService::engine_metrics() const {
  return implementation_->engine().metrics();
}
const ServiceMetrics& SessionService::metrics() const { return implementation_->metrics(); }
const std::shared_ptr<const model::Model>& SessionService::model() const {
  return implementation_->engine().model();
}
Durability SessionService::durability() const { return implementation_->store().durability(); }
int64_t SessionService::resident_bytes() const { return implementation_->resident_bytes(); }
const std::string& SessionService::owner() const { return implementation_->owner(); }

}  // namespace tarn::serve
