#include "base/frame.h"

#include <array>
#include <cstdio>
#include <optional>

#include "base/checked.h"
#include "base/checksum.h"

namespace tarn {
namespace {

constexpr uint32_t kEndianMarker = 0x01020304;
constexpr uint32_t kOtherEndianMarker = 0x04030201;
constexpr size_t kHeaderLengthOffset = 16;
constexpr size_t kPayloadLengthOffset = 24;
constexpr size_t kPayloadHashOffset = 32;
constexpr size_t kHeaderHashOffset = 40;

/// XXH3-64 of the preamble before the hash itself and of the header.
uint64_t header_hash(std::string_view bytes, size_t header_bytes) {
  Xxh3 hash;
  hash.update(bytes.data(), kHeaderHashOffset);
  hash.update(bytes.data() + kFramePreambleBytes, static_cast<int64_t>(header_bytes));
  return hash.digest();
}

void put_at(std::string* out, size_t offset, uint64_t value) {
  std::memcpy(out->data() + offset, &value, sizeof value);
}

}  // namespace

std::string_view ByteReader::bytes(uint64_t count) {
  if (count > rest_.size()) {
    overrun_ = true;
    rest_ = {};
    return {};
  }
  const std::string_view piece = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return piece;
}

std::string hex(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::string begin_frame(const FrameKind& kind) {
  std::string out(kind.magic);
  put(&out, kind.version);
  put(&out, kEndianMarker);
  out.resize(kFramePreambleBytes, '\0');
  return out;
}

void finish_frame(std::string* bytes, size_t payload_start) {
  TARN_CHECK(payload_start >= kFramePreambleBytes && payload_start <= bytes->size());
  const size_t header_bytes = payload_start - kFramePreambleBytes;
  const size_t payload_bytes = bytes->size() - payload_start;
  put_at(bytes, kHeaderLengthOffset, header_bytes);
  put_at(bytes, kPayloadLengthOffset, payload_bytes);
  put_at(bytes, kPayloadHashOffset,
         xxh3_64(bytes->data() + payload_start, static_cast<int64_t>(payload_bytes)));
  put_at(bytes, kHeaderHashOffset, header_hash(*bytes, header_bytes));
}

Result<Frame> open_frame(std::string_view bytes, const FrameKind& kind, const std::string& where) {
  const std::string noun(kind.noun);
  if (bytes.size() < kFramePreambleBytes) {
    return corrupt("has " + std::to_string(bytes.size()) + " bytes, a " + noun + " has at least " +
                       std::to_string(kFramePreambleBytes),
                   where);
  }
  ByteReader reader(bytes);
  if (reader.bytes(kind.magic.size()) != kind.magic) {
    return corrupt("is no " + noun + ": it does not start with \"" + std::string(kind.magic) + "\"",
                   where);
  }
  const auto version = reader.take<uint32_t>();
  const auto marker = reader.take<uint32_t>();
  if (marker == kOtherEndianMarker) {
    return Error{ErrorCode::kUnsupported, "comes from a machine with the other byte order", where};
  }
  if (marker != kEndianMarker) {
    return corrupt("has byte-order mark " + hex(marker) + ", wanted " + hex(kEndianMarker), where);
  }
  if (version != kind.version) {
    return Error{ErrorCode::kUnsupported,
                 "has format version " + std::to_string(version) + ", this build reads " +
                     std::to_string(kind.version),
                 where};
  }
  const auto header_bytes = reader.take<uint64_t>();
  const auto payload_bytes = reader.take<uint64_t>();
  const auto payload_hash = reader.take<uint64_t>();
  const auto stored_header_hash = reader.take<uint64_t>();
  std::optional<uint64_t> wanted = checked_add(header_bytes, payload_bytes);
  if (wanted) wanted = checked_add(*wanted, uint64_t{kFramePreambleBytes});
  if (!wanted || *wanted != bytes.size()) {
    return corrupt("has " + std::to_string(bytes.size()) + " bytes, its header says " +
                       (wanted ? std::to_string(*wanted) : std::string("more than 2^64")),
                   where);
  }
  if (header_hash(bytes, header_bytes) != stored_header_hash) {
    return corrupt("has a damaged header: its checksum does not match", where);
  }
  const Frame frame{bytes.substr(kFramePreambleBytes, header_bytes),
                    bytes.substr(kFramePreambleBytes + header_bytes)};
  if (xxh3_64(frame.payload.data(), static_cast<int64_t>(payload_bytes)) != payload_hash) {
    return corrupt("has a damaged payload: its checksum does not match", where);
  }
  return frame;
}

}  // namespace tarn
