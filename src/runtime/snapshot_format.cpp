#include "runtime/snapshot_format.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <type_traits>

#include "base/checked.h"
#include "base/checksum.h"
#include "base/dtype.h"

namespace tarn::runtime::snapshot_format {

namespace {

/// Takes fields off the front; a read past the end gives zeros and is remembered.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T take() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    const std::string_view piece = bytes(sizeof(T));
    if (piece.size() == sizeof(T)) std::memcpy(&value, piece.data(), sizeof(T));
    return value;
  }
  std::string_view bytes(uint64_t count) {
    if (count > rest_.size()) {
      overrun_ = true;
      rest_ = {};
      return {};
    }
    const std::string_view piece = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return piece;
  }
  bool overrun() const { return overrun_; }
  bool at_end() const { return !overrun_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool overrun_ = false;
};

struct Sections {
  std::string_view header;
  std::string_view payload;
};

/// Checks preamble, sizes and checksums.
Result<Sections> split(std::string_view bytes, const std::string& where) {
  if (bytes.size() < kPreambleBytes) {
    return corrupt("has " + std::to_string(bytes.size()) + " bytes, a snapshot has at least " +
                       std::to_string(kPreambleBytes),
                   where);
  }
  Reader reader(bytes);
  if (reader.bytes(kMagic.size()) != kMagic) {
    return corrupt("is no snapshot: it does not start with \"TARNSNAP\"", where);
  }
  const auto version = reader.take<uint32_t>();
  const auto marker = reader.take<uint32_t>();
  if (marker == kOtherEndianMarker) {
    return Error{ErrorCode::kUnsupported, "comes from a machine with the other byte order", where};
  }
  if (marker != kEndianMarker) {
    return corrupt("has byte-order mark " + hex(marker) + ", wanted " + hex(kEndianMarker), where);
  }
  if (version != kVersion) {
    return Error{ErrorCode::kUnsupported,
                 "has format version " + std::to_string(version) + ", this build reads " +
                     std::to_string(kVersion),
                 where};
  }
  const auto header_bytes = reader.take<uint64_t>();
  const auto payload_bytes = reader.take<uint64_t>();
  const auto payload_hash = reader.take<uint64_t>();
  const auto stored_header_hash = reader.take<uint64_t>();
  std::optional<uint64_t> wanted = checked_add(header_bytes, payload_bytes);
  if (wanted) wanted = checked_add(*wanted, uint64_t{kPreambleBytes});
  if (!wanted || *wanted != bytes.size()) {
    return corrupt("has " + std::to_string(bytes.size()) + " bytes, its header says " +
                       (wanted ? std::to_string(*wanted) : std::string("more than 2^64")),
                   where);
  }
  if (header_hash(bytes, header_bytes) != stored_header_hash) {
    return corrupt("has a damaged header: its checksum does not match", where);
  }
  Sections sections{bytes.substr(kPreambleBytes, header_bytes),
                    bytes.substr(kPreambleBytes + header_bytes)};
  if (xxh3_64(sections.payload.data(), static_cast<int64_t>(payload_bytes)) != payload_hash) {
    return corrupt("has a damaged payload: its checksum does not match", where);
  }
  return sections;
}

/// Reads one row of the tensor table.
Status parse_tensor(Reader& reader, size_t index, const std::string& where,
                    SnapshotInfo::Tensor* tensor) {
  tensor->layer = reader.take<uint32_t>();
  const auto dtype = reader.take<uint8_t>();
  const auto flags = reader.take<uint8_t>();
  const auto rank = reader.take<uint8_t>();
  const auto name_bytes = reader.take<uint8_t>();
  const auto entries = reader.take<int64_t>();
  const std::string what = "tensor " + std::to_string(index);
  if (dtype != static_cast<uint8_t>(DType::kF32)) {
    return corrupt(what + " has dtype " + std::to_string(dtype) + ", wanted 0 (f32)", where);
  }
  if ((flags & ~kTensorPerToken) != 0) {
    return corrupt(what + " has unknown flags " + std::to_string(flags), where);
  }
  if (rank > kMaxRank) {
    return corrupt(what + " has rank " + std::to_string(rank) + ", wanted at most 8", where);
  }
  std::optional<int64_t> elements = entries >= 0 ? std::optional(entries) : std::nullopt;
  for (uint8_t i = 0; i < rank; ++i) {
    const auto extent = reader.take<int64_t>();
    tensor->shape.push_back(extent);
    elements = extent >= 0 && elements ? checked_mul(*elements, extent) : std::nullopt;
  }
  if (elements) elements = checked_mul(*elements, int64_t{sizeof(float)});
  if (!elements) return corrupt(what + " has a size that is out of range", where);
  tensor->name = std::string(reader.bytes(name_bytes));
  tensor->dtype = dtype_name(DType::kF32);
  tensor->per_token = (flags & kTensorPerToken) != 0;
  tensor->entries = entries;
  tensor->bytes = *elements;
  return {};
}

/// The rules that hold between the header's fields, whatever the model.
Status check_counts(const ParsedSnapshot& parsed, const std::string& where) {
  const SnapshotInfo& info = parsed.info;
  // Token i is input i + 1, so a sequence has one input more than tokens.
  const bool in_range = info.token_count >= 0 && info.token_count <= SequenceState::kMaxTokens &&
                        info.position >= 0 && info.position <= info.token_count + 1 &&
                        info.tokens_kept >= 0 && info.tokens_kept <= info.token_count;
  const int64_t evaluated = info.position > 0 ? info.position - 1 : 0;  // tokens among the inputs
  if (!in_range || info.tokens_kept < info.token_count - evaluated ||
      (parsed.keep_tokens && info.tokens_kept != info.token_count)) {
    return corrupt("has counts that contradict each other: position " +
                       std::to_string(info.position) + ", tokens " +
                       std::to_string(info.token_count) + ", kept " +
                       std::to_string(info.tokens_kept),
                   where);
  }
  for (size_t i = 0; i < info.tensors.size(); ++i) {
    const int64_t wanted = info.tensors[i].per_token ? info.position : 1;
    if (info.tensors[i].entries == wanted) continue;
    return corrupt("tensor " + std::to_string(i) + " has " +
                       std::to_string(info.tensors[i].entries) + " entries, wanted " +
                       std::to_string(wanted),
                   where);
  }
  if (const Status status = validate(info.sampler); !status.ok()) {
    return corrupt("has sampler options out of range: " + status.error().message, where);
  }
  if (!Utf8Stream().set_pending(info.pending_utf8)) {
    return corrupt("has pending text bytes that start no UTF-8 character", where);
  }
  return {};
}

Status parse_header(std::string_view header, const std::string& where, ParsedSnapshot* parsed) {
  Reader reader(header);
  SnapshotInfo& info = parsed->info;
  info.model_fingerprint = reader.take<uint64_t>();
  info.position = reader.take<int64_t>();
  info.token_count = reader.take<int64_t>();
  info.tokens_kept = reader.take<int64_t>();
  info.seed = reader.take<uint64_t>();
  info.stream = reader.take<uint64_t>();
  info.random_words = reader.take<uint64_t>();
  info.sampler.top_k = reader.take<int64_t>();
  info.sampler.temperature = reader.take<float>();
  info.sampler.top_p = reader.take<float>();
  const auto flags = reader.take<uint8_t>();
  const auto pending_bytes = reader.take<uint8_t>();
  const std::string_view pending = reader.bytes(kPendingBytes);
  const std::string_view reserved = reader.bytes(3);
  parsed->output_values = reader.take<uint32_t>();
  const auto tensor_count = reader.take<uint32_t>();
  if (reader.overrun()) return corrupt("has a header that is too short", where);
  if ((flags & ~(kFlagKeepTokens | kFlagGreedy)) != 0) {
    return corrupt("has unknown flags " + std::to_string(flags), where);
  }
  if (pending_bytes > kPendingBytes || reserved != std::string_view("\0\0\0", 3) ||
      pending.substr(pending_bytes).find_first_not_of('\0') != std::string_view::npos) {
    return corrupt("has bytes set that must be zero", where);
  }
  parsed->keep_tokens = (flags & kFlagKeepTokens) != 0;
  info.sampler.greedy = (flags & kFlagGreedy) != 0;
  info.pending_utf8 = std::string(pending.substr(0, pending_bytes));
  for (uint32_t i = 0; i < tensor_count && !reader.overrun(); ++i) {
    TARN_RETURN_IF_ERROR(parse_tensor(reader, i, where, &info.tensors.emplace_back()));
  }
  if (!reader.at_end()) {
    return corrupt("has a header whose length does not fit its tensor table", where);
  }
  TARN_RETURN_IF_ERROR(check_counts(*parsed, where));
  info.has_output = info.position == info.token_count + 1;
  if ((parsed->output_values > 0) != info.has_output) {
    return corrupt("has " + std::to_string(parsed->output_values) + " head outputs at position " +
                       std::to_string(info.position) + " of " + std::to_string(info.token_count) +
                       " tokens",
                   where);
  }
  return {};
}

}  // namespace

uint64_t header_hash(std::string_view bytes, size_t header_bytes) {
  Xxh3 hash;
  hash.update(bytes.data(), kHeaderHashOffset);
  hash.update(bytes.data() + kPreambleBytes, static_cast<int64_t>(header_bytes));
  return hash.digest();
}

std::string hex(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

Result<ParsedSnapshot> parse_snapshot(std::string_view bytes, const std::string& where) {
  TARN_ASSIGN(const Sections sections, split(bytes, where));
  ParsedSnapshot parsed;
  TARN_RETURN_IF_ERROR(parse_header(sections.header, where, &parsed));
  SnapshotInfo& info = parsed.info;
  Reader reader(sections.payload);
  parsed.output = reader.bytes(uint64_t{parsed.output_values} * sizeof(float));
  parsed.tokens = reader.bytes(static_cast<uint64_t>(info.tokens_kept) * sizeof(int32_t));
  for (const SnapshotInfo::Tensor& tensor : info.tensors) {
    parsed.tensors.push_back(reader.bytes(static_cast<uint64_t>(tensor.bytes)));
    info.state_bytes += static_cast<int64_t>(parsed.tensors.back().size());
  }
  if (!reader.at_end()) {
    return corrupt("has a payload whose length does not fit its header", where);
  }
  info.version = kVersion;
  info.file_bytes = static_cast<int64_t>(bytes.size());
  return parsed;
}

}  // namespace tarn::runtime::snapshot_format
