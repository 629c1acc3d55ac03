#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tarn::serve {

/// A version of a session: which one, and which number.
struct VersionName {
  std::string id;
  int64_t seq = 0;
  bool operator==(const VersionName&) const = default;
};

/// One version of a session as a store keeps it. Times are milliseconds since 1970.
struct SessionRecord {
  std::string id;      ///< 1 to 64 of the characters A-Z a-z 0-9 _ -
  int64_t seq = 0;     ///< 1, 2, 3 ... within a session; never given twice
  VersionName parent;  ///< what a fork or rollback came from; empty id: none
  int64_t token_count = 0;
  uint64_t model_fingerprint = 0;
  int64_t created_ms = 0;  ///< of the session
  int64_t written_ms = 0;  ///< of this version
  int64_t ttl_ms = 0;      ///< the session expires so long after its last use; 0: never
  int64_t expires_ms = 0;  ///< 0: never
  std::string payload;     ///< a snapshot; the store does not look inside
};

/// What save() takes: the store gives numbers and times.
struct SaveRequest {
  std::string_view id;
  /// The newest version that the writer knows, 0 to create the session.
  int64_t expected_seq = 0;
  /// From acquire_lease(); 0: the writer holds no lease.
  int64_t fencing_token = 0;
  bool release_lease = false;  ///< the lease ends with the save
  int64_t token_count = 0;
  uint64_t model_fingerprint = 0;
  int64_t ttl_ms = 0;
  std::string_view payload;
};

/// What a finished save survives.
enum class Durability {
  kMemory,   ///< nothing: it ends with the process (or with the database's)
  kProcess,  ///< a crash of the process, not a loss of power
  kPower,    ///< a loss of power, if the disk keeps what it says it has written
};
/// "memory", "process" or "power".
const char* durability_name(Durability durability);

struct SaveResult {
  int64_t seq = 0;
  Durability durability = Durability::kMemory;
};

struct Lease {
  int64_t fencing_token = 0;  ///< grows with every lease of a session
  int64_t until_ms = 0;
  int64_t seq = 0;  ///< newest version when the lease began, 0: the session does not exist
};

/// A version that can be loaded.
struct KeptVersion {
  int64_t seq = 0;
  int64_t token_count = 0;
  int64_t payload_bytes = 0;
  int64_t written_ms = 0;
  VersionName parent;
};

/// What info() and list() tell of a session.
struct StoredInfo {
  std::string id;
  int64_t seq = 0;  ///< the newest version
  int64_t token_count = 0;
  uint64_t model_fingerprint = 0;
  int64_t payload_bytes = 0;      ///< of the newest version
  std::vector<KeptVersion> kept;  ///< oldest first
  int64_t kept_bytes = 0;         ///< payloads of all of them, before any sharing
  int64_t created_ms = 0;
  int64_t last_use_ms = 0;     ///< last save, fork, rollback or lease
  int64_t expires_ms = 0;      ///< 0: never
  std::string lease_owner;     ///< empty: no live lease
  int64_t lease_until_ms = 0;  ///< 0: no live lease
};

struct SessionPage {
  std::vector<StoredInfo> sessions;  ///< by id
  std::string next;                  ///< token of the next page; empty: this was the last
};

struct StoreState {
  bool read_only = false;
  bool failing = false;  ///< the last operation failed (kIo): the place may be out of reach
  std::string reason;    ///< why, in one sentence
};

struct StoreOptions {
  int keep_versions = 4;  ///< of each session, the newest among them
  bool sync = true;       ///< false: dir and sqlite do not wait for the disk (Durability::kProcess)
  int64_t chunk_above_bytes = int64_t{1} << 20;  ///< larger payloads are stored in chunks
  int64_t max_payload_bytes = int64_t{64} << 30;
  int64_t max_ttl_ms = int64_t{10} * 365 * 86400 * 1000;
  /// A removed session's numbers are remembered so long: a late writer cannot revive it.
  int64_t tombstone_ms = int64_t{86400} * 1000;
  /// How long a call waits for other writers and for a database, all its waits together.
  int64_t busy_timeout_ms = 5000;
  int64_t max_store_bytes = 0;  ///< sqlite: limit of the database file; 0: none
  /// Milliseconds since 1970; the system's clock when empty. Leases and expiry go by it.
  std::function<int64_t()> now_ms;
  /// fsync of the dir store when set: tests let it fail.
  std::function<int(int)> sync_file;
};

/// Sessions kept beyond a request: versions of snapshots under a name, each whole or absent.
///
/// A save is a compare-and-swap on the version number; with leases, one writer per session holds a
/// fencing token and any older one is refused. Versions never change, so forks and rollbacks refer
/// to them without a copy. Format: docs/formats/record.md; what survives what: docs/operations.md.
/// A session whose time is over, and that nobody has leased, counts as absent at once.
/// Threads: safe; stores of several processes may share one place (except `memory:`).
///
/// Errors of all operations: kInvalidArgument (an id or a number out of range), kIo and kCorrupt;
/// of those that write also kReadOnly once the disk failed a flush, and kResource when the
/// place is full. A failed write leaves every version as it was.
class SessionStore {
 public:
  virtual ~SessionStore() = default;
  SessionStore() = default;
  SessionStore(const SessionStore&) = delete;
  SessionStore& operator=(const SessionStore&) = delete;

  /// Adds a version; the oldest beyond keep_versions is dropped. Errors: kConflict, the newest
  /// version is not `expected_seq` (Error::where is kSeqConflict), or the writer's lease is not the
  /// newest one (kLeaseConflict); kResource, a payload above max_payload_bytes.
  virtual Result<SaveResult> save(const SaveRequest& request) = 0;
  /// The newest version or the one of that number, checked whole: checksums, lengths, names.
  /// Errors: kNotFound; kCorrupt; kInvalidArgument, with both fingerprints, when it belongs to
  /// another model than `model_fingerprint`.
  virtual Result<SessionRecord> load(std::string_view id, uint64_t model_fingerprint,
                                     std::optional<int64_t> seq = {}) = 0;
  /// Reads the head alone. Errors: kNotFound.
  virtual Result<StoredInfo> info(std::string_view id) = 0;
  /// At most `limit` (1 to 1000) sessions with ids after `page_token`. Sessions that come or go
  /// between two pages may be missed, others are listed once.
  virtual Result<SessionPage> list(std::string_view page_token, int limit) = 0;
  /// Drops all versions. Errors: kNotFound, kConflict (another writer's lease).
  virtual Status remove(std::string_view id, int64_t fencing_token = 0) = 0;
  /// Makes session `new_id` whose version refers to version `seq` of `id`. Errors: kNotFound,
  /// kConflict when `new_id` exists. Cost: no copy of the payload.
  virtual Result<SaveResult> fork(std::string_view id, int64_t seq, std::string_view new_id) = 0;
  /// Adds a version that refers to the older version `seq`. Errors: kNotFound, kConflict.
  virtual Result<SaveResult> rollback(std::string_view id, int64_t seq,
                                      int64_t fencing_token = 0) = 0;

  /// Makes `owner` the one writer of a session, which need not exist yet, for some time. The same
  /// owner may acquire again: its older token is void then. Errors: kConflict while another
  /// owner's lease lasts.
  virtual Result<Lease> acquire_lease(std::string_view id, std::string_view owner,
                                      int64_t seconds) = 0;
  /// Extends a lease, even one that ended, while nobody took a newer one. `is_use`: the session's
  /// time begins anew, too. Errors: kConflict.
  virtual Result<Lease> renew_lease(std::string_view id, int64_t fencing_token, int64_t seconds,
                                    bool is_use) = 0;
  /// Ends a lease early. Errors: kConflict when a newer one exists.
  virtual Status release_lease(std::string_view id, int64_t fencing_token) = 0;

  /// Gives back the room of sessions whose time is over at `now_ms`, but none with a live lease. Returns how many.
  virtual Result<int64_t> expire(int64_t now_ms) = 0;
  /// Removes what no version refers to: leftovers of writers that were killed. Returns how many
  /// objects. The dir store does this by itself when it is opened after a crash.
  virtual Result<int64_t> collect() = 0;

  virtual StoreState state() const = 0;
  virtual Durability durability() const = 0;
};

/// Where a kConflict of a save is: in the number or in the lease.
inline constexpr const char* kSeqConflict = "expected_seq";
inline constexpr const char* kLeaseConflict = "fencing_token";
/// kConflict at kLeaseConflict: another server's lease lasts for so long, unless it is renewed.
Error held_elsewhere(std::string_view id, int64_t rest_ms);

/// Whether `id` can name a session.
bool is_session_id(std::string_view id);

/// Opens a store by its URL: `memory:`, `dir:/path` (made if absent), `sqlite:/path/file.db` (made
/// if absent), `postgresql://…`, `redis://host:port/db` or `redis+unix:///path/to/socket`.
Result<std::unique_ptr<SessionStore>> open_store(const std::string& url,
                                                 const StoreOptions& options = {});

}  // namespace tarn::serve
