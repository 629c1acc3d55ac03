#include "serve/record.h"

#include <algorithm>

#include "base/checksum.h"
#include "base/frame.h"

namespace tarn::serve {
namespace {

constexpr FrameKind kRecord{"TARNRECD", 1, "record"};
constexpr FrameKind kHead{"TARNSESS", 1, "session head"};
constexpr uint8_t kFlagChunked = 1;
constexpr size_t kMaxIdBytes = 64;
// Times and counts stay far from the ends of int64, so that their sums cannot overflow.
constexpr int64_t kMaxNumber = int64_t{1} << 60;

bool is_id_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
         c == '-';
}

bool is_number(int64_t value) { return value >= 0 && value <= kMaxNumber; }

/// A parent is an id and a number from 1, or neither.
bool is_parent(const VersionName& parent) {
  return parent.id.empty() ? parent.seq == 0
                           : is_session_id(parent.id) && parent.seq > 0 && is_number(parent.seq);
}

void put_name(std::string* out, const ObjectName& name) {
  out->append(reinterpret_cast<const char*>(name.data()), name.size());
}

ObjectName take_name(ByteReader& reader) {
  ObjectName name{};
  const std::string_view bytes = reader.bytes(name.size());
  std::copy(bytes.begin(), bytes.end(), name.begin());
  return name;
}

/// Description of a record: what is wrong with it, or null.
const char* record_fault(const ParsedRecord& parsed) {
  const SessionRecord& record = parsed.record;
  if (!is_session_id(record.id)) return "has a session id that cannot be one";
  if (!is_parent(record.parent)) return "has a parent that cannot be one";
  if (record.seq < 1 || !is_number(record.seq)) return "has a number out of range";
  if (!is_number(record.token_count)) return "has a token count out of range";
  if (!is_number(record.created_ms) || !is_number(record.written_ms)) {
    return "has a time out of range";
  }
  if (!is_number(record.ttl_ms)) return "has a time to live out of range";
  if (parsed.payload_bytes > static_cast<uint64_t>(kMaxNumber)) return "has a size out of range";
  return nullptr;
}

const char* version_fault(const HeadVersion& version) {
  if (version.seq < 1 || !is_number(version.seq)) return "has a version number out of range";
  if (!is_parent(version.parent)) return "has a parent that cannot be one";
  if (!is_number(version.token_count) || !is_number(version.payload_bytes) ||
      !is_number(version.written_ms)) {
    return "has a version with a number out of range";
  }
  return nullptr;
}

const char* head_fault(const SessionHead& head) {
  if (!is_session_id(head.id)) return "has a session id that cannot be one";
  if (!head.lease_owner.empty() && !is_lease_owner(head.lease_owner)) {
    return "has a lease owner that cannot be one";
  }
  for (const int64_t number : {head.last_seq, head.fencing_token, head.lease_until_ms,
                               head.created_ms, head.last_use_ms, head.ttl_ms}) {
    if (!is_number(number)) return "has a number out of range";
  }
  int64_t previous = 0;
  for (const HeadVersion& version : head.versions) {
    if (version.seq <= previous) return "has versions out of order";
    previous = version.seq;
  }
  return previous > head.last_seq ? "has a version after its last one" : nullptr;
}

HeadVersion take_version(ByteReader& reader) {
  HeadVersion version;
  version.seq = reader.take<int64_t>();
  version.parent.seq = reader.take<int64_t>();
  version.token_count = reader.take<int64_t>();
  version.payload_bytes = reader.take<int64_t>();
  version.written_ms = reader.take<int64_t>();
  version.model_fingerprint = reader.take<uint64_t>();
  version.record = take_name(reader);
  const auto parent_bytes = reader.take<uint8_t>();
  // Any other value than 0 and 1 would not come back the same, so it is no flag of ours.
  const auto flags = reader.take<uint8_t>();
  version.chunked = flags == kFlagChunked;
  version.parent.id = std::string(reader.bytes(parent_bytes));
  if (flags > kFlagChunked) version.seq = -1;
  return version;
}

}  // namespace

bool is_session_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes &&
         std::all_of(id.begin(), id.end(), is_id_character);
}

bool is_lease_owner(std::string_view owner) {
  return !owner.empty() && owner.size() <= kMaxOwnerBytes &&
         std::all_of(owner.begin(), owner.end(), [](char c) { return c > ' ' && c < 127; });
}

std::string object_hex(const ObjectName& name) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * name.size());
  for (const uint8_t byte : name) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string encode_record(const SessionRecord& record, std::string_view payload,
                          const std::vector<ObjectName>& chunks) {
  std::string out = begin_frame(kRecord);
  out.reserve(size_t{512} + chunks.size() * sizeof(ObjectName) +
              (chunks.empty() ? payload.size() : 0));
  put(&out, record.model_fingerprint);
  put(&out, record.seq);
  put(&out, record.parent.seq);
  put(&out, record.token_count);
  put(&out, record.created_ms);
  put(&out, record.written_ms);
  put(&out, record.ttl_ms);
  put(&out, uint64_t{payload.size()});
  put(&out, xxh3_64(payload.data(), static_cast<int64_t>(payload.size())));
  put(&out, static_cast<uint32_t>(chunks.size()));
  put(&out, static_cast<uint8_t>(record.id.size()));
  put(&out, static_cast<uint8_t>(record.parent.id.size()));
  put(&out, uint16_t{0});
  out += record.id;
  out += record.parent.id;
  for (const ObjectName& chunk : chunks) put_name(&out, chunk);
  const size_t payload_start = out.size();
  if (chunks.empty()) out += payload;
  finish_frame(&out, payload_start);
  return out;
}

Result<ParsedRecord> parse_record(std::string_view bytes, const std::string& where) {
  TARN_ASSIGN(const Frame frame, open_frame(bytes, kRecord, where));
  ByteReader reader(frame.header);
  ParsedRecord parsed;
  SessionRecord& record = parsed.record;
  record.model_fingerprint = reader.take<uint64_t>();
  record.seq = reader.take<int64_t>();
  record.parent.seq = reader.take<int64_t>();
  record.token_count = reader.take<int64_t>();
  record.created_ms = reader.take<int64_t>();
  record.written_ms = reader.take<int64_t>();
  record.ttl_ms = reader.take<int64_t>();
  parsed.payload_bytes = reader.take<uint64_t>();
  parsed.payload_hash = reader.take<uint64_t>();
  const auto chunks = reader.take<uint32_t>();
  const auto id_bytes = reader.take<uint8_t>();
  const auto parent_bytes = reader.take<uint8_t>();
  const auto reserved = reader.take<uint16_t>();
  record.id = std::string(reader.bytes(id_bytes));
  record.parent.id = std::string(reader.bytes(parent_bytes));
  for (uint32_t i = 0; i < chunks && !reader.overrun(); ++i) {
    parsed.chunks.push_back(take_name(reader));
  }
  if (!reader.at_end()) return corrupt("has a header of a wrong length", where);
  if (reserved != 0) return corrupt("has bytes set that must be zero", where);
  if (const char* fault = record_fault(parsed)) return corrupt(fault, where);
  if (chunks > 0) {
    const uint64_t wanted = (parsed.payload_bytes + kChunkBytes - 1) / kChunkBytes;
    if (wanted != chunks || !frame.payload.empty()) {
      return corrupt("has " + std::to_string(chunks) + " chunks for a payload of " +
                         std::to_string(parsed.payload_bytes) + " bytes",
                     where);
    }
    return parsed;
  }
  parsed.payload = frame.payload;
  if (parsed.payload.size() != parsed.payload_bytes ||
      xxh3_64(parsed.payload.data(), static_cast<int64_t>(parsed.payload.size())) !=
          parsed.payload_hash) {
    return corrupt("has a payload that is not the one its header describes", where);
  }
  return parsed;
}

std::string encode_head(const SessionHead& head) {
  std::string out = begin_frame(kHead);
  put(&out, head.last_seq);
  put(&out, head.fencing_token);
  put(&out, head.lease_until_ms);
  put(&out, head.created_ms);
  put(&out, head.last_use_ms);
  put(&out, head.ttl_ms);
  put(&out, static_cast<uint32_t>(head.versions.size()));
  put(&out, static_cast<uint8_t>(head.id.size()));
  put(&out, static_cast<uint8_t>(head.lease_owner.size()));
  put(&out, uint16_t{0});
  out += head.id;
  out += head.lease_owner;
  for (const HeadVersion& version : head.versions) {
    put(&out, version.seq);
    put(&out, version.parent.seq);
    put(&out, version.token_count);
    put(&out, version.payload_bytes);
    put(&out, version.written_ms);
    put(&out, version.model_fingerprint);
    put_name(&out, version.record);
    put(&out, static_cast<uint8_t>(version.parent.id.size()));
    put(&out, version.chunked ? kFlagChunked : uint8_t{0});
    out += version.parent.id;
  }
  finish_frame(&out, out.size());
  return out;
}

Result<SessionHead> parse_head(std::string_view bytes, const std::string& where) {
  TARN_ASSIGN(const Frame frame, open_frame(bytes, kHead, where));
  ByteReader reader(frame.header);
  SessionHead head;
  head.last_seq = reader.take<int64_t>();
  head.fencing_token = reader.take<int64_t>();
  head.lease_until_ms = reader.take<int64_t>();
  head.created_ms = reader.take<int64_t>();
  head.last_use_ms = reader.take<int64_t>();
  head.ttl_ms = reader.take<int64_t>();
  const auto versions = reader.take<uint32_t>();
  const auto id_bytes = reader.take<uint8_t>();
  const auto owner_bytes = reader.take<uint8_t>();
  const auto reserved = reader.take<uint16_t>();
  head.id = std::string(reader.bytes(id_bytes));
  head.lease_owner = std::string(reader.bytes(owner_bytes));
  for (uint32_t i = 0; i < versions && !reader.overrun(); ++i) {
    head.versions.push_back(take_version(reader));
    if (reader.overrun()) break;
    if (const char* fault = version_fault(head.versions.back())) return corrupt(fault, where);
  }
  if (!reader.at_end() || !frame.payload.empty()) {
    return corrupt("has a header of a wrong length", where);
  }
  if (reserved != 0) return corrupt("has bytes set that must be zero", where);
  if (const char* fault = head_fault(head)) return corrupt(fault, where);
  return head;
}

}  // namespace tarn::serve
