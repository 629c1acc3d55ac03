#include "serve/references.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/log.h"

namespace tarn::serve {
namespace {

/// Contents with one name: the name of the second starts from another seed, and so on. One is
/// already unheard of; this many are no accident.
constexpr uint64_t kMaxNamesakes = 8;

constexpr char kRecordKind = 'r';
constexpr char kChunkKind = 'c';

std::string object_name(char kind, const ObjectName& name) {
  return std::string(1, kind) + "/" + object_hex(name);
}

/// Records are in folder r, chunks in c; the counts of both are in n.
std::string count_name(const std::string& name) {
  return std::string("n/") + name[0] + "-" + name.substr(2);
}

Result<int64_t> parse_count(const std::string& text, const std::string& where) {
  int64_t count = 0;
  const bool digits =
      !text.empty() && text.size() <= 18 &&
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  for (size_t i = 0; digits && i < text.size(); ++i) count = 10 * count + (text[i] - '0');
  if (count < 2) return corrupt("is no count of references", where);
  return count;
}

}  // namespace

std::string head_name(std::string_view id) { return "s/" + std::string(id); }
std::string record_name(const ObjectName& name) { return object_name(kRecordKind, name); }
std::string chunk_name(const ObjectName& name) { return object_name(kChunkKind, name); }

bool is_named(std::string_view content, const ObjectName& name) {
  for (uint64_t seed = 0; seed < kMaxNamesakes; ++seed) {
    if (xxh3_128(content.data(), static_cast<int64_t>(content.size()), seed) == name) return true;
  }
  return false;
}

Result<ObjectName> References::add_chunk(std::string_view content) {
  return add(kChunkKind, content);
}
Result<ObjectName> References::add_record(std::string_view content) {
  return add(kRecordKind, content);
}

Result<ObjectName> References::add(char kind, std::string_view content) {
  for (uint64_t seed = 0; seed < kMaxNamesakes; ++seed) {
    const ObjectName digest = xxh3_128(content.data(), static_cast<int64_t>(content.size()), seed);
    const std::string name = object_name(kind, digest);
    if (const auto use = uses_.find(name); use != uses_.end() && use->second.content) {
      if (*use->second.content != content) continue;
      ++use->second.delta;
      return digest;
    }
    // Compared rather than trusted: neither a namesake nor a stored chunk that has rotted may
    // become part of a new version.
    TARN_ASSIGN(const MaybeValue stored, reader_->get(name));
    if (stored && *stored != content) continue;
    Use& use = uses_[name];
    ++use.delta;
    if (!stored) use.content = std::string(content);
    return digest;
  }
  return Error{ErrorCode::kIo,
               "cannot name an object: " + std::to_string(kMaxNamesakes) +
                   " others of the same name differ from it; is the store damaged?",
               {}};
}

void References::retain_record(const ObjectName& name) { ++uses_[record_name(name)].delta; }

void References::release_record(const HeadVersion& version) {
  Use& use = uses_[record_name(version.record)];
  --use.delta;
  use.chunked = use.chunked || version.chunked;
}

Status References::release_chunks(const std::string& record) {
  TARN_ASSIGN(const MaybeValue bytes, reader_->get(record));
  const Result<ParsedRecord> parsed =
      bytes ? parse_record(*bytes, record) : Result<ParsedRecord>(corrupt("is gone", record));
  if (!parsed.ok()) {
    // The version goes all the same: an old fault must not stop new saves.
    log_message(LogLevel::kWarning,
                parsed.error().to_string() + "; its chunks stay until the store is collected");
    return {};
  }
  for (const ObjectName& chunk : parsed->chunks) --uses_[chunk_name(chunk)].delta;
  return {};
}

Status References::settle(const std::string& name, const Use& use, Plan* plan) {
  if (use.delta == 0) return {};
  const std::string counter = count_name(name);
  int64_t count = use.content ? 0 : 1;
  if (!use.content) {
    TARN_ASSIGN(const MaybeValue stored, reader_->get(counter));
    if (stored) {
      TARN_ASSIGN(count, parse_count(*stored, counter));
    }
  }
  const int64_t wanted = count + use.delta;
  std::vector<Change>& changes = use.delta > 0 ? plan->before : plan->after;
  if (use.content) plan->before.push_back({name, use.content});
  if (wanted <= 0) plan->after.push_back({name, {}});
  if (wanted > 1) {
    changes.push_back({counter, std::to_string(wanted)});
  } else if (count > 1) {
    changes.push_back({counter, {}});
  }
  return {};
}

Status References::finish(Plan* plan) {
  std::vector<std::string> dying;
  for (const auto& [name, use] : uses_) {
    if (name[0] != kRecordKind || use.delta >= 0 || !use.chunked) continue;
    TARN_ASSIGN(const MaybeValue stored, reader_->get(count_name(name)));
    if (!stored) dying.push_back(name);
  }
  for (const std::string& name : dying) TARN_RETURN_IF_ERROR(release_chunks(name));
  for (const auto& [name, use] : uses_) TARN_RETURN_IF_ERROR(settle(name, use, plan));
  return {};
}

namespace {

/// What heads and records refer to, by object name.
Result<std::map<std::string, int64_t>> count_references(PlanReader& reader) {
  std::map<std::string, int64_t> counts;
  TARN_ASSIGN(const std::vector<std::string> heads, reader.names("s/"));
  for (const std::string& name : heads) {
    TARN_ASSIGN(const MaybeValue bytes, reader.get(name));
    if (!bytes) continue;
    // A head that cannot be read may refer to anything: then nothing is garbage for certain.
    TARN_ASSIGN(const SessionHead head, parse_head(*bytes, name));
    for (const HeadVersion& version : head.versions) {
      const std::string record = record_name(version.record);
      if (++counts[record] > 1 || !version.chunked) continue;
      TARN_ASSIGN(const MaybeValue content, reader.get(record));
      if (!content) continue;
      TARN_ASSIGN(const ParsedRecord parsed, parse_record(*content, record));
      for (const ObjectName& chunk : parsed.chunks) ++counts[chunk_name(chunk)];
    }
  }
  return counts;
}

}  // namespace

Result<Plan> plan_collection(PlanReader& reader) {
  TARN_ASSIGN(const auto counts, count_references(reader));
  Plan plan;
  plan.collects = true;
  for (const char* prefix : {"r/", "c/"}) {
    TARN_ASSIGN(const std::vector<std::string> names, reader.names(prefix));
    for (const std::string& name : names) {
      if (!counts.contains(name)) plan.after.push_back({name, {}});
    }
  }
  std::map<std::string, int64_t> wanted;
  for (const auto& [name, count] : counts) {
    if (count > 1) wanted[count_name(name)] = count;
  }
  TARN_ASSIGN(const std::vector<std::string> counters, reader.names("n/"));
  for (const std::string& name : counters) {
    if (!wanted.contains(name)) plan.after.push_back({name, {}});
  }
  for (const auto& [name, count] : wanted) {
    TARN_ASSIGN(const MaybeValue stored, reader.get(name));
    if (stored != std::to_string(count)) plan.before.push_back({name, std::to_string(count)});
  }
  return plan;
}

}  // namespace tarn::serve
