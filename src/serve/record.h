#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/store.h"

namespace tarn::serve {

// The two kinds of bytes that stores keep beside raw chunks: docs/formats/record.md.

/// Name of a record or chunk: XXH3-128 of its content.
using ObjectName = std::array<uint8_t, 16>;
/// 32 hexadecimal digits.
std::string object_hex(const ObjectName& name);

/// Bytes of a chunk; the last one of a payload may be shorter.
inline constexpr int64_t kChunkBytes = int64_t{256} << 10;

/// One version of a session: its description, and its payload or the names of its chunks.
struct ParsedRecord {
  SessionRecord record;  ///< without payload
  uint64_t payload_bytes = 0;
  uint64_t payload_hash = 0;
  std::vector<ObjectName> chunks;  ///< empty: the payload is in the record
  std::string_view payload;        ///< points into the parsed bytes
};

/// The bytes of a record. `chunks` is empty for a payload that goes into the record itself.
std::string encode_record(const SessionRecord& record, std::string_view payload,
                          const std::vector<ObjectName>& chunks);
/// Checks everything but the content of chunks. Pure; allocates no more than bytes.size().
/// Errors: kCorrupt; kUnsupported, another version or byte order.
Result<ParsedRecord> parse_record(std::string_view bytes, const std::string& where);

/// One row of a session's head.
struct HeadVersion {
  int64_t seq = 0;
  VersionName parent;
  int64_t token_count = 0;
  int64_t payload_bytes = 0;
  int64_t written_ms = 0;
  uint64_t model_fingerprint = 0;
  ObjectName record{};
  bool chunked = false;
};

/// What changes about a session: its versions, its lease, its times. Without versions it is a
/// tombstone or the lease of a session that was never saved.
struct SessionHead {
  std::string id;
  int64_t last_seq = 0;  ///< highest number ever given
  int64_t fencing_token = 0;
  int64_t lease_until_ms = 0;
  std::string lease_owner;
  int64_t created_ms = 0;
  int64_t last_use_ms = 0;
  int64_t ttl_ms = 0;
  std::vector<HeadVersion> versions;  ///< oldest first

  bool exists() const { return !versions.empty(); }
  int64_t newest_seq() const { return exists() ? versions.back().seq : 0; }
  int64_t expires_ms() const { return exists() && ttl_ms > 0 ? last_use_ms + ttl_ms : 0; }
  bool has_live_lease(int64_t now_ms) const { return lease_until_ms > now_ms; }
  /// Its time is over: it counts as absent, whether or not it has been swept. A lease keeps it.
  bool is_over(int64_t now_ms) const {
    return expires_ms() > 0 && expires_ms() <= now_ms && !has_live_lease(now_ms);
  }
};

std::string encode_head(const SessionHead& head);
/// As parse_record.
Result<SessionHead> parse_head(std::string_view bytes, const std::string& where);

/// Largest owner name of a lease.
inline constexpr size_t kMaxOwnerBytes = 64;
/// 1 to kMaxOwnerBytes printable ASCII characters without spaces.
bool is_lease_owner(std::string_view owner);

}  // namespace tarn::serve
