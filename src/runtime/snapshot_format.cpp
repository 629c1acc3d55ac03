#include "runtime/snapshot_format.h"

#include <optional>

#include "base/checked.h"
#include "base/dtype.h"

namespace tarn::runtime::snapshot_format {

namespace {

/// Reads one row of the tensor table.
Status parse_tensor(ByteReader& reader, size_t index, const std::string& where,
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
  ByteReader reader(header);
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

Result<ParsedSnapshot> parse_snapshot(std::string_view bytes, const std::string& where) {
  TARN_ASSIGN(const Frame sections, open_frame(bytes, kSnapshot, where));
  ParsedSnapshot parsed;
  TARN_RETURN_IF_ERROR(parse_header(sections.header, where, &parsed));
  SnapshotInfo& info = parsed.info;
  ByteReader reader(sections.payload);
  parsed.output = reader.bytes(uint64_t{parsed.output_values} * sizeof(float));
  parsed.tokens = reader.bytes(static_cast<uint64_t>(info.tokens_kept) * sizeof(int32_t));
  for (const SnapshotInfo::Tensor& tensor : info.tensors) {
    parsed.tensors.push_back(reader.bytes(static_cast<uint64_t>(tensor.bytes)));
    info.state_bytes += static_cast<int64_t>(parsed.tensors.back().size());
  }
  if (!reader.at_end()) {
    return corrupt("has a payload whose length does not fit its header", where);
  }
  info.version = kSnapshot.version;
  info.file_bytes = static_cast<int64_t>(bytes.size());
  return parsed;
}

}  // namespace tarn::runtime::snapshot_format
