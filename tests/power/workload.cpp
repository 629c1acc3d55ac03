#include "power/workload.h"

#include <algorithm>
#include <memory>

namespace tarn::power {
namespace {

constexpr uint64_t kModel = 42;
constexpr size_t kChunkBytes = 262'144;  // docs/formats/record.md
constexpr size_t kKeys = 500;            // few enough that payload_of() can keep them all
const std::vector<std::string> kIds = {"a", "b", "c", "d"};

std::string noise(size_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (char& c : text) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    c = static_cast<char>(state >> 56);
  }
  return text;
}

void append(Session* session, int64_t seq, uint64_t key) {
  session->last_seq = seq;
  session->kept.emplace_back(seq, key);
  if (session->kept.size() > kKeepVersions) session->kept.erase(session->kept.begin());
}

/// What the store answered must be what the model says.
Status check_seq(const Result<serve::SaveResult>& saved, int64_t wanted) {
  if (!saved.ok()) return saved.error();
  if (saved->seq == wanted) return {};
  return Error{ErrorCode::kCorrupt,
               "gave number " + std::to_string(saved->seq) + ", wanted " + std::to_string(wanted),
               "store"};
}

Action make_save(Action action, const std::string& id, Chance& chance) {
  Session& session = action.after[id];
  const int64_t expected = session.kept.empty() ? 0 : session.kept.back().first;
  const int64_t seq = session.last_seq + 1;
  const uint64_t key = chance.below(kKeys);
  append(&session, seq, key);
  action.what = "save " + id + " " + std::to_string(seq);
  action.run = [=](serve::SessionStore& store) {
    serve::SaveRequest request;
    request.id = id;
    request.expected_seq = expected;
    request.token_count = seq;
    request.model_fingerprint = kModel;
    request.payload = payload_of(key);
    return check_seq(store.save(request), seq);
  };
  return action;
}

Action make_fork(Action action, const std::string& id, const std::string& new_id, Chance& chance) {
  const std::vector<std::pair<int64_t, uint64_t>>& kept = action.after[id].kept;
  const auto [seq, key] = kept[chance.below(kept.size())];
  Session& session = action.after[new_id];
  const int64_t wanted = session.last_seq + 1;
  append(&session, wanted, key);
  action.what = "fork " + id + " to " + new_id;
  action.run = [=, from = seq](serve::SessionStore& store) {
    return check_seq(store.fork(id, from, new_id), wanted);
  };
  return action;
}

Action make_rollback(Action action, const std::string& id, Chance& chance) {
  Session& session = action.after[id];
  const auto [seq, key] = session.kept[chance.below(session.kept.size())];
  const int64_t wanted = session.last_seq + 1;
  append(&session, wanted, key);
  action.what = "rollback " + id;
  action.run = [=, to = seq](serve::SessionStore& store) {
    return check_seq(store.rollback(id, to), wanted);
  };
  return action;
}

Action make_removal(Action action, const std::string& id) {
  action.after[id].kept.clear();
  action.what = "remove " + id;
  action.run = [=](serve::SessionStore& store) { return store.remove(id); };
  return action;
}

Action make_lease(Action action, const std::string& id) {
  action.what = "lease " + id;
  action.run = [=](serve::SessionStore& store) -> Status {
    TARN_ASSIGN(const serve::Lease lease, store.acquire_lease(id, "power", 1));
    return store.release_lease(id, lease.fencing_token);
  };
  return action;
}

/// The key whose payload this is, among those that the version was written with.
Result<uint64_t> key_of(const serve::SessionRecord& record, const Written& written) {
  const auto keys = written.find({record.id, record.seq});
  if (keys != written.end()) {
    for (const uint64_t key : keys->second) {
      if (record.payload == payload_of(key)) return key;
    }
  }
  return Error{ErrorCode::kConflict, "holds what nobody wrote there",
               record.id + " " + std::to_string(record.seq)};
}

}  // namespace

bool same_versions(const Model& a, const Model& b) {
  return std::all_of(kIds.begin(), kIds.end(), [&](const std::string& id) {
    const auto in_a = a.find(id), in_b = b.find(id);
    const bool has_a = in_a != a.end() && !in_a->second.kept.empty();
    const bool has_b = in_b != b.end() && !in_b->second.kept.empty();
    return has_a == has_b && (!has_a || in_a->second.kept == in_b->second.kept);
  });
}

const std::string& payload_of(uint64_t key) {
  static std::map<uint64_t, std::string> payloads;
  std::string& payload = payloads[key];
  if (!payload.empty()) return payload;
  if (key % 5 == 0) payload = noise(kChunkBytes, key % 2);
  payload += noise(500 + key % 6000, key);
  return payload;
}

Action choose_action(const Model& model, Chance& chance) {
  std::vector<std::string> existing, absent;
  for (const std::string& id : kIds) {
    const auto session = model.find(id);
    const bool exists = session != model.end() && !session->second.kept.empty();
    (exists ? existing : absent).push_back(id);
  }
  Action action{{}, model, {}};
  const size_t kind = chance.below(100);
  const std::string& any = kIds[chance.below(kIds.size())];
  if (existing.empty()) return make_save(std::move(action), any, chance);
  const std::string& id = existing[chance.below(existing.size())];
  if (kind < 15 && !absent.empty()) return make_fork(std::move(action), id, absent[0], chance);
  if (kind < 27) return make_rollback(std::move(action), id, chance);
  if (kind < 39) return make_removal(std::move(action), id);
  if (kind < 44) return make_lease(std::move(action), id);
  return make_save(std::move(action), any, chance);
}

void add_written(const Model& model, Written* written) {
  for (const auto& [id, session] : model) {
    for (const auto& [seq, key] : session.kept) (*written)[{id, seq}].insert(key);
  }
}

Result<Model> observe(serve::SessionStore& store, const Written& written) {
  Model model;
  TARN_ASSIGN(const serve::SessionPage page, store.list("", 1000));
  for (const serve::StoredInfo& info : page.sessions) {
    for (const serve::KeptVersion& kept : info.kept) {
      TARN_ASSIGN(const serve::SessionRecord record, store.load(info.id, kModel, kept.seq));
      TARN_ASSIGN(const uint64_t key, key_of(record, written));
      model[info.id].kept.emplace_back(kept.seq, key);
    }
  }
  return model;
}

}  // namespace tarn::power
