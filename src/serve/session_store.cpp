#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "base/checksum.h"
#include "base/frame.h"
#include "base/log.h"
#include "serve/record.h"
#include "serve/references.h"
#include "serve/session_store.h"

namespace tarn::serve {
namespace {

/// Reads of a version that saves keep replacing: each retry means that a save came in between.
constexpr int kMaxRaces = 1000;
constexpr int kScanRows = 256;
constexpr int kMaxListRows = 1000;
constexpr int64_t kMaxLeaseSeconds = 86400;

int64_t system_now_ms() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
}

std::string session_where(std::string_view id) { return "session " + std::string(id); }
std::string version_where(std::string_view id, int64_t seq) {
  return session_where(id) + ", version " + std::to_string(seq);
}

Error not_found(std::string message, std::string where) {
  return {ErrorCode::kNotFound, std::move(message), std::move(where)};
}
Error conflict(std::string message, std::string where) {
  return {ErrorCode::kConflict, std::move(message), std::move(where)};
}

Status check_id(std::string_view id) {
  if (is_session_id(id)) return {};
  return invalid_argument(
      "is no session id: wanted 1 to 64 of the characters A-Z a-z 0-9 _ -, got " +
          std::to_string(id.size()) + " bytes",
      "id");
}

Status check_range(int64_t value, int64_t low, int64_t high, const char* field) {
  if (value >= low && value <= high) return {};
  return invalid_argument("is " + std::to_string(value) + ", wanted " + std::to_string(low) +
                              " to " + std::to_string(high),
                          field);
}

/// Whether a writer with this token (0: none) may change the session now.
Status check_writer(const SessionHead& head, int64_t fencing_token, int64_t now_ms) {
  if (fencing_token == 0) {
    if (!head.has_live_lease(now_ms)) return {};
    return held_elsewhere(head.id, head.lease_until_ms - now_ms);
  }
  if (fencing_token == head.fencing_token) return {};
  return conflict("the lease with token " + std::to_string(fencing_token) + " of " +
                      session_where(head.id) + " is void: the newest token is " +
                      std::to_string(head.fencing_token),
                  kLeaseConflict);
}

/// The same for one that changes versions. Without a lease it voids those that ended, which could
/// be renewed else and keep everybody from what their owners do not know.
Status admit_writer(SessionHead& head, int64_t fencing_token, int64_t now_ms) {
  TARN_RETURN_IF_ERROR(check_writer(head, fencing_token, now_ms));
  if (fencing_token == 0 && head.fencing_token != 0) {
    head.fencing_token = std::max(head.fencing_token + 1, now_ms);
  }
  return {};
}

/// The head of a session, an empty one when there is none.
Result<SessionHead> read_head(PlanReader& reader, std::string_view id) {
  TARN_ASSIGN(const MaybeValue bytes, reader.get(head_name(id)));
  if (!bytes) {
    SessionHead head;
    head.id = std::string(id);
    return head;
  }
  TARN_ASSIGN(SessionHead head, parse_head(*bytes, session_where(id)));
  if (head.id != id) return corrupt("has the head of session " + head.id, session_where(id));
  return head;
}

Result<HeadVersion> find_version(const SessionHead& head, std::optional<int64_t> seq,
                                 int64_t now_ms) {
  if (!head.exists() || head.is_over(now_ms))
    return not_found("no such session", session_where(head.id));
  if (!seq) return head.versions.back();
  for (const HeadVersion& version : head.versions) {
    if (version.seq == *seq) return version;
  }
  return not_found("no such version: kept are " + std::to_string(head.versions.front().seq) +
                       " to " + std::to_string(head.newest_seq()),
                   version_where(head.id, *seq));
}

/// Takes the versions of a session whose time is over: whoever sweeps comes later.
void drop_if_over(SessionHead& head, References& references, int64_t now_ms) {
  if (!head.is_over(now_ms)) return;
  for (const HeadVersion& version : head.versions) references.release_record(version);
  head.versions.clear();
}

StoredInfo describe(const SessionHead& head, int64_t now_ms) {
  const HeadVersion& newest = head.versions.back();
  StoredInfo info;
  info.id = head.id;
  info.seq = newest.seq;
  info.token_count = newest.token_count;
  info.model_fingerprint = newest.model_fingerprint;
  info.payload_bytes = newest.payload_bytes;
  for (const HeadVersion& version : head.versions) {
    info.kept.push_back({version.seq, version.token_count, version.payload_bytes,
                         version.written_ms, version.parent});
    info.kept_bytes += version.payload_bytes;
  }
  info.created_ms = head.created_ms;
  info.last_use_ms = head.last_use_ms;
  info.expires_ms = head.expires_ms();
  if (head.has_live_lease(now_ms)) {
    info.lease_owner = head.lease_owner;
    info.lease_until_ms = head.lease_until_ms;
  }
  return info;
}

class ObjectSessionStore final : public SessionStore {
 public:
  ObjectSessionStore(std::unique_ptr<Objects> objects, const StoreOptions& options)
      : objects_(std::move(objects)), options_(options) {}

  Result<SaveResult> save(const SaveRequest& request) override;
  Result<SessionRecord> load(std::string_view id, uint64_t model_fingerprint,
                             std::optional<int64_t> seq) override;
  Result<StoredInfo> info(std::string_view id) override;
  Result<SessionPage> list(std::string_view page_token, int limit) override;
  Status remove(std::string_view id, int64_t fencing_token) override;
  Result<SaveResult> fork(std::string_view id, int64_t seq, std::string_view new_id) override;
  Result<SaveResult> rollback(std::string_view id, int64_t seq, int64_t fencing_token) override;
  Result<Lease> acquire_lease(std::string_view id, std::string_view owner,
                              int64_t seconds) override;
  Result<Lease> renew_lease(std::string_view id, int64_t fencing_token, int64_t seconds,
                            bool is_use) override;
  Status release_lease(std::string_view id, int64_t fencing_token) override;
  Result<int64_t> expire(int64_t now_ms) override;
  Result<int64_t> collect() override;
  StoreState state() const override { return objects_->state(); }
  Durability durability() const override { return objects_->durability(); }

 private:
  int64_t now() const { return options_.now_ms ? options_.now_ms() : system_now_ms(); }
  Status check_request(const SaveRequest& request) const;
  Result<ObjectName> add_payload(References& references, const SessionRecord& record,
                                 std::string_view payload, bool chunked) const;
  /// Appends a version of a new number, drops the oldest and makes it the plan's commit.
  Result<Plan> add_version(SessionHead& head, HeadVersion version, References& references,
                           int64_t now_ms) const;
  /// What a head refers to; nothing when a save replaced it meanwhile.
  Result<std::optional<SessionRecord>> load_version(const SessionHead& head,
                                                    const HeadVersion& version);
  Result<std::optional<std::string>> load_chunks(const ParsedRecord& parsed);
  /// Changes a head that has no version more or less by `change`.
  template <class Change>
  Status change_head(std::string_view id, Change change);
  Result<Plan> plan_removal(SessionHead& head, PlanReader& reader, int64_t now_ms) const;
  /// Visits the heads behind a name in order until it answers false; damaged ones are logged as
  /// `skipped`.
  Status for_each_head(std::string after, const std::string& skipped,
                       const std::function<Result<bool>(const SessionHead&)>& visit) const;
  /// The plan for one head at its time, none if it is not yet over; counts removed sessions.
  Result<Plan> plan_expiry(PlanReader& reader, const std::string& id, int64_t now_ms,
                           bool* removed) const;

  std::unique_ptr<Objects> objects_;
  StoreOptions options_;
};

Status ObjectSessionStore::check_request(const SaveRequest& request) const {
  constexpr int64_t kMaxNumber = int64_t{1} << 53;
  TARN_RETURN_IF_ERROR(check_id(request.id));
  TARN_RETURN_IF_ERROR(check_range(request.expected_seq, 0, kMaxNumber, "expected_seq"));
  TARN_RETURN_IF_ERROR(check_range(request.fencing_token, 0, kMaxNumber, "fencing_token"));
  TARN_RETURN_IF_ERROR(check_range(request.token_count, 0, kMaxNumber, "token_count"));
  TARN_RETURN_IF_ERROR(check_range(request.ttl_ms, 0, options_.max_ttl_ms, "ttl_ms"));
  if (static_cast<int64_t>(request.payload.size()) > options_.max_payload_bytes) {
    return Error{ErrorCode::kResource,
                 "has " + std::to_string(request.payload.size()) + " bytes, at most " +
                     std::to_string(options_.max_payload_bytes) + " are stored",
                 session_where(request.id)};
  }
  return {};
}

Result<ObjectName> ObjectSessionStore::add_payload(References& references,
                                                   const SessionRecord& record,
                                                   std::string_view payload, bool chunked) const {
  std::vector<ObjectName> chunks;
  for (size_t begin = 0; chunked && begin < payload.size(); begin += kChunkBytes) {
    TARN_ASSIGN(const ObjectName name, references.add_chunk(payload.substr(begin, kChunkBytes)));
    chunks.push_back(name);
  }
  return references.add_record(encode_record(record, payload, chunks));
}

Result<Plan> ObjectSessionStore::add_version(SessionHead& head, HeadVersion version,
                                             References& references, int64_t now_ms) const {
  if (!head.exists()) head.created_ms = now_ms;
  head.last_seq = version.seq;
  head.last_use_ms = now_ms;
  head.versions.push_back(std::move(version));
  const size_t keep = static_cast<size_t>(options_.keep_versions);
  while (head.versions.size() > keep) {
    references.release_record(head.versions.front());
    head.versions.erase(head.versions.begin());
  }
  Plan plan;
  TARN_RETURN_IF_ERROR(references.finish(&plan));
  plan.commit = Change{head_name(head.id), encode_head(head)};
  return plan;
}

Result<SaveResult> ObjectSessionStore::save(const SaveRequest& request) {
  TARN_RETURN_IF_ERROR(check_request(request));
  const bool chunked = static_cast<int64_t>(request.payload.size()) >
                       std::max<int64_t>(0, options_.chunk_above_bytes);
  SaveResult result;
  const auto plan_save = [&](PlanReader& reader) -> Result<Plan> {
    const int64_t now_ms = now();
    TARN_ASSIGN(SessionHead head, read_head(reader, request.id));
    TARN_RETURN_IF_ERROR(admit_writer(head, request.fencing_token, now_ms));
    References references(reader);
    drop_if_over(head, references, now_ms);
    if (head.newest_seq() != request.expected_seq) {
      return conflict(session_where(request.id) + " is at version " +
                          std::to_string(head.newest_seq()) + ", the writer expected " +
                          std::to_string(request.expected_seq),
                      kSeqConflict);
    }
    SessionRecord record;
    record.id = head.id;
    record.seq = head.last_seq + 1;
    if (request.expected_seq > 0) record.parent = {head.id, request.expected_seq};
    record.token_count = request.token_count;
    record.model_fingerprint = request.model_fingerprint;
    record.created_ms = head.exists() ? head.created_ms : now_ms;
    record.written_ms = now_ms;
    record.ttl_ms = request.ttl_ms;
    HeadVersion version{record.seq,
                        record.parent,
                        record.token_count,
                        static_cast<int64_t>(request.payload.size()),
                        now_ms,
                        record.model_fingerprint,
                        {},
                        chunked};
    TARN_ASSIGN(version.record, add_payload(references, record, request.payload, chunked));
    head.ttl_ms = request.ttl_ms;
    if (request.release_lease) head.lease_until_ms = 0;
    result.seq = record.seq;
    return add_version(head, std::move(version), references, now_ms);
  };
  TARN_RETURN_IF_ERROR(objects_->update(plan_save));
  result.durability = durability();
  return result;
}

Result<std::optional<std::string>> ObjectSessionStore::load_chunks(const ParsedRecord& parsed) {
  std::string payload;
  for (size_t i = 0; i < parsed.chunks.size(); ++i) {
    TARN_ASSIGN(const MaybeValue chunk, objects_->get(chunk_name(parsed.chunks[i])));
    if (!chunk) return std::optional<std::string>();
    payload += *chunk;
    if (i == 0)
      payload.reserve(std::min<size_t>(parsed.payload_bytes, parsed.chunks.size() * kChunkBytes));
    if (payload.size() > parsed.payload_bytes) break;
  }
  return std::optional<std::string>(std::move(payload));
}

Result<std::optional<SessionRecord>> ObjectSessionStore::load_version(const SessionHead& head,
                                                                      const HeadVersion& version) {
  const std::string where = version_where(head.id, version.seq);
  TARN_ASSIGN(const MaybeValue bytes, objects_->get(record_name(version.record)));
  if (!bytes) return std::optional<SessionRecord>();
  TARN_ASSIGN(ParsedRecord parsed, parse_record(*bytes, where));
  SessionRecord& record = parsed.record;
  if (!is_named(*bytes, version.record) || !parsed.chunks.empty() != version.chunked) {
    return corrupt("is another record than its session's head names", where);
  }
  if (version.chunked) {
    TARN_ASSIGN(MaybeValue payload, load_chunks(parsed));
    if (!payload) return std::optional<SessionRecord>();
    record.payload = std::move(*payload);
    if (record.payload.size() != parsed.payload_bytes ||
        xxh3_64(record.payload.data(), static_cast<int64_t>(record.payload.size())) !=
            parsed.payload_hash) {
      return corrupt("has a damaged payload: its checksum does not match", where);
    }
  } else {
    record.payload = std::string(parsed.payload);
  }
  record.id = head.id;
  record.seq = version.seq;
  record.parent = version.parent;
  record.created_ms = head.created_ms;
  record.written_ms = version.written_ms;
  record.ttl_ms = head.ttl_ms;
  record.expires_ms = head.expires_ms();
  return std::optional<SessionRecord>(std::move(record));
}

Result<SessionRecord> ObjectSessionStore::load(std::string_view id, uint64_t model_fingerprint,
                                               std::optional<int64_t> seq) {
  TARN_RETURN_IF_ERROR(check_id(id));
  MaybeValue previous;
  for (int race = 0; race < kMaxRaces; ++race) {
    TARN_ASSIGN(MaybeValue bytes, objects_->get(head_name(id)));
    if (!bytes) return not_found("no such session", session_where(id));
    TARN_ASSIGN(const SessionHead head, parse_head(*bytes, session_where(id)));
    if (head.id != id) return corrupt("has the head of session " + head.id, session_where(id));
    TARN_ASSIGN(const HeadVersion version, find_version(head, seq, now()));
    const std::string where = version_where(id, version.seq);
    if (version.model_fingerprint != model_fingerprint) {
      return invalid_argument("belongs to the model with fingerprint " +
                                  hex(version.model_fingerprint) + ", the loaded model has " +
                                  hex(model_fingerprint),
                              where);
    }
    TARN_ASSIGN(std::optional<SessionRecord> record, load_version(head, version));
    if (record) return std::move(*record);
    if (previous == bytes) return corrupt("is lost: the store has no such record or chunk", where);
    previous = std::move(bytes);
  }
  return conflict("was replaced at every try to read it", session_where(id));
}

Result<StoredInfo> ObjectSessionStore::info(std::string_view id) {
  TARN_RETURN_IF_ERROR(check_id(id));
  TARN_ASSIGN(const MaybeValue bytes, objects_->get(head_name(id)));
  if (!bytes) return not_found("no such session", session_where(id));
  TARN_ASSIGN(const SessionHead head, parse_head(*bytes, session_where(id)));
  if (head.id != id) return corrupt("has the head of session " + head.id, session_where(id));
  const int64_t now_ms = now();
  if (!head.exists() || head.is_over(now_ms)) {
    return not_found("no such session", session_where(id));
  }
  return describe(head, now_ms);
}

Result<SessionPage> ObjectSessionStore::list(std::string_view page_token, int limit) {
  TARN_RETURN_IF_ERROR(check_range(limit, 1, kMaxListRows, "limit"));
  if (!page_token.empty() && !is_session_id(page_token)) {
    return invalid_argument("is no token of a page", "page_token");
  }
  const int64_t now_ms = now();
  SessionPage page;
  TARN_RETURN_IF_ERROR(for_each_head(head_name(page_token), "not listed",
                                     [&](const SessionHead& head) -> Result<bool> {
                                       if (!head.exists() || head.is_over(now_ms)) return true;
                                       if (page.sessions.size() == static_cast<size_t>(limit)) {
                                         page.next = page.sessions.back().id;
                                         return false;
                                       }
                                       page.sessions.push_back(describe(head, now_ms));
                                       return true;
                                     }));
  return page;
}

Status ObjectSessionStore::for_each_head(
    std::string after, const std::string& skipped,
    const std::function<Result<bool>(const SessionHead&)>& visit) const {
  for (;;) {
    TARN_ASSIGN(const std::vector<NamedValue> rows, objects_->scan("s/", after, kScanRows));
    for (const auto& [name, bytes] : rows) {
      Result<SessionHead> head = parse_head(bytes, name);
      if (head.ok() && head_name(head->id) != name) {
        head = corrupt("has the head of session " + head->id, name);
      }
      if (!head.ok()) {
        log_message(LogLevel::kWarning, skipped + ": " + head.error().to_string());
        continue;
      }
      TARN_ASSIGN(const bool goes_on, visit(*head));
      if (!goes_on) return {};
    }
    if (rows.size() < static_cast<size_t>(kScanRows)) return {};
    after = rows.back().first;
  }
}

Result<Plan> ObjectSessionStore::plan_removal(SessionHead& head, PlanReader& reader,
                                              int64_t now_ms) const {
  References references(reader);
  for (const HeadVersion& version : head.versions) references.release_record(version);
  head.versions.clear();
  head.lease_until_ms = 0;
  head.last_use_ms = now_ms;
  Plan plan;
  TARN_RETURN_IF_ERROR(references.finish(&plan));
  plan.commit = Change{head_name(head.id), encode_head(head)};
  return plan;
}

Status ObjectSessionStore::remove(std::string_view id, int64_t fencing_token) {
  TARN_RETURN_IF_ERROR(check_id(id));
  return objects_->update([&](PlanReader& reader) -> Result<Plan> {
    Result<SessionHead> head = read_head(reader, id);
    if (!head.ok() && head.error().code == ErrorCode::kCorrupt) {
      // Removing is the one way out of a damaged head; what it referred to is left to collect().
      log_message(LogLevel::kWarning, "removed although damaged: " + head.error().to_string());
      Plan plan;
      plan.commit = Change{head_name(id), {}};
      return plan;
    }
    if (!head.ok()) return head.error();
    const int64_t now_ms = now();
    if (!head->exists() || head->is_over(now_ms)) {
      return not_found("no such session", session_where(id));
    }
    TARN_RETURN_IF_ERROR(admit_writer(*head, fencing_token, now_ms));
    return plan_removal(*head, reader, now_ms);
  });
}

Result<SaveResult> ObjectSessionStore::fork(std::string_view id, int64_t seq,
                                            std::string_view new_id) {
  TARN_RETURN_IF_ERROR(check_id(id));
  TARN_RETURN_IF_ERROR(check_id(new_id));
  SaveResult result;
  const Status status = objects_->update([&](PlanReader& reader) -> Result<Plan> {
    const int64_t now_ms = now();
    TARN_ASSIGN(const SessionHead source, read_head(reader, id));
    TARN_ASSIGN(HeadVersion version, find_version(source, seq, now_ms));
    TARN_ASSIGN(SessionHead head, read_head(reader, new_id));
    References references(reader);
    drop_if_over(head, references, now_ms);
    if (head.exists()) return conflict("exists already", session_where(new_id));
    TARN_RETURN_IF_ERROR(admit_writer(head, 0, now_ms));
    references.retain_record(version.record);
    version.parent = {source.id, version.seq};
    version.seq = result.seq = head.last_seq + 1;
    head.ttl_ms = source.ttl_ms;
    return add_version(head, std::move(version), references, now_ms);
  });
  TARN_RETURN_IF_ERROR(status);
  result.durability = durability();
  return result;
}

Result<SaveResult> ObjectSessionStore::rollback(std::string_view id, int64_t seq,
                                                int64_t fencing_token) {
  TARN_RETURN_IF_ERROR(check_id(id));
  SaveResult result;
  const Status status = objects_->update([&](PlanReader& reader) -> Result<Plan> {
    const int64_t now_ms = now();
    TARN_ASSIGN(SessionHead head, read_head(reader, id));
    TARN_ASSIGN(HeadVersion version, find_version(head, seq, now_ms));
    TARN_RETURN_IF_ERROR(admit_writer(head, fencing_token, now_ms));
    References references(reader);
    references.retain_record(version.record);
    version.parent = {head.id, version.seq};
    version.seq = result.seq = head.last_seq + 1;
    return add_version(head, std::move(version), references, now_ms);
  });
  TARN_RETURN_IF_ERROR(status);
  result.durability = durability();
  return result;
}

template <class Change>
Status ObjectSessionStore::change_head(std::string_view id, Change change) {
  TARN_RETURN_IF_ERROR(check_id(id));
  return objects_->update([&](PlanReader& reader) -> Result<Plan> {
    TARN_ASSIGN(SessionHead head, read_head(reader, id));
    const int64_t now_ms = now();
    References references(reader);
    drop_if_over(head, references, now_ms);
    TARN_RETURN_IF_ERROR(change(head, now_ms));
    Plan plan;
    TARN_RETURN_IF_ERROR(references.finish(&plan));
    plan.commit = {head_name(id), encode_head(head)};
    return plan;
  });
}

Result<Lease> ObjectSessionStore::acquire_lease(std::string_view id, std::string_view owner,
                                                int64_t seconds) {
  TARN_RETURN_IF_ERROR(check_range(seconds, 1, kMaxLeaseSeconds, "seconds"));
  if (!is_lease_owner(owner)) {
    return invalid_argument("wanted 1 to 64 printable characters without spaces", "owner");
  }
  Lease lease;
  const Status status = change_head(id, [&](SessionHead& head, int64_t now_ms) -> Status {
    if (head.lease_owner != owner) TARN_RETURN_IF_ERROR(check_writer(head, 0, now_ms));
    // The time keeps tokens growing where the last one has been forgotten with its session.
    head.fencing_token = std::max(head.fencing_token + 1, now_ms);
    head.lease_owner = std::string(owner);
    head.lease_until_ms = now_ms + seconds * 1000;
    head.last_use_ms = now_ms;
    lease = {head.fencing_token, head.lease_until_ms, head.newest_seq()};
    return {};
  });
  TARN_RETURN_IF_ERROR(status);
  return lease;
}

Result<Lease> ObjectSessionStore::renew_lease(std::string_view id, int64_t fencing_token,
                                              int64_t seconds, bool is_use) {
  TARN_RETURN_IF_ERROR(check_range(seconds, 1, kMaxLeaseSeconds, "seconds"));
  TARN_RETURN_IF_ERROR(check_range(fencing_token, 1, int64_t{1} << 53, "fencing_token"));
  Lease lease;
  const Status status = change_head(id, [&](SessionHead& head, int64_t now_ms) -> Status {
    TARN_RETURN_IF_ERROR(check_writer(head, fencing_token, now_ms));
    head.lease_until_ms = now_ms + seconds * 1000;
    if (is_use) head.last_use_ms = now_ms;
    lease = {head.fencing_token, head.lease_until_ms, head.newest_seq()};
    return {};
  });
  TARN_RETURN_IF_ERROR(status);
  return lease;
}

Status ObjectSessionStore::release_lease(std::string_view id, int64_t fencing_token) {
  TARN_RETURN_IF_ERROR(check_range(fencing_token, 1, int64_t{1} << 53, "fencing_token"));
  return change_head(id, [&](SessionHead& head, int64_t now_ms) -> Status {
    TARN_RETURN_IF_ERROR(check_writer(head, fencing_token, now_ms));
    head.lease_until_ms = 0;
    return {};
  });
}

Result<Plan> ObjectSessionStore::plan_expiry(PlanReader& reader, const std::string& id,
                                             int64_t now_ms, bool* removed) const {
  *removed = false;
  TARN_ASSIGN(SessionHead head, read_head(reader, id));
  if (head.has_live_lease(now_ms)) return Plan{};
  if (head.exists() && head.expires_ms() > 0 && head.expires_ms() <= now_ms) {
    *removed = true;
    return plan_removal(head, reader, now_ms);
  }
  Plan plan;
  if (!head.exists() && head.last_use_ms + options_.tombstone_ms <= now_ms) {
    plan.commit = Change{head_name(id), {}};
  }
  return plan;
}

Result<int64_t> ObjectSessionStore::expire(int64_t now_ms) {
  int64_t count = 0;
  const auto visit = [&](const SessionHead& head) -> Result<bool> {
    const int64_t over =
        head.exists() ? head.expires_ms() : head.last_use_ms + options_.tombstone_ms;
    if (over == 0 || over > now_ms) return true;
    bool removed = false;
    TARN_RETURN_IF_ERROR(objects_->update(
        [&](PlanReader& reader) { return plan_expiry(reader, head.id, now_ms, &removed); }));
    count += removed ? 1 : 0;
    return true;
  };
  TARN_RETURN_IF_ERROR(for_each_head("s/", "cannot expire", visit));
  return count;
}

Result<int64_t> ObjectSessionStore::collect() {
  int64_t count = 0;
  const Status status = objects_->update([&](PlanReader& reader) -> Result<Plan> {
    TARN_ASSIGN(Plan plan, plan_collection(reader));
    count = std::count_if(plan.after.begin(), plan.after.end(),
                          [](const Change& change) { return change.name[0] != 'n'; });
    return plan;
  });
  TARN_RETURN_IF_ERROR(status);
  return count;
}

}  // namespace

Error held_elsewhere(std::string_view id, int64_t rest_ms) {
  const int64_t seconds = std::max<int64_t>(1, (rest_ms + 999) / 1000);
  return conflict(
      session_where(id) + " is held by another server for up to " + std::to_string(seconds) + " s",
      kLeaseConflict);
}

Result<std::unique_ptr<SessionStore>> make_session_store(std::unique_ptr<Objects> objects,
                                                         const StoreOptions& options) {
  TARN_RETURN_IF_ERROR(check_range(options.keep_versions, 1, 1000, "keep_versions"));
  const bool left_over = objects->left_over();
  auto store = std::make_unique<ObjectSessionStore>(std::move(objects), options);
  if (left_over) {
    // Leftovers cost space and nothing else, so a store that cannot be swept is opened all the same.
    const Result<int64_t> collected = store->collect();
    log_message(collected.ok() ? LogLevel::kInfo : LogLevel::kWarning,
                collected.ok() ? "the store was left in the middle of a write; removed " +
                                     std::to_string(*collected) + " leftovers"
                               : "cannot sweep the store: " + collected.error().to_string());
  }
  return std::unique_ptr<SessionStore>(std::move(store));
}

}  // namespace tarn::serve
