#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "power/disk_model.h"
#include "serve/store.h"

namespace tarn::power {

inline constexpr int kKeepVersions = 2;

/// What a store must hold: of each session the kept versions, oldest first, with the key of the
/// payload of each.
struct Session {
  int64_t last_seq = 0;  ///< highest number ever given, of removed sessions, too
  std::vector<std::pair<int64_t, uint64_t>> kept;
};
using Model = std::map<std::string, Session>;

/// Whether both have the same versions.
bool same_versions(const Model& a, const Model& b);

/// The payload that a key stands for: some KiB, or enough for chunks, the first of which others share.
const std::string& payload_of(uint64_t key);

/// One change of a store and what it must make of a model.
struct Action {
  std::string what;
  Model after;
  std::function<Status(serve::SessionStore&)> run;
};

/// A save, fork, rollback, removal or lease that `model` allows.
Action choose_action(const Model& model, Chance& chance);

/// Keys that versions were written with, by session and number; more than one where a writer died.
using Written = std::map<std::pair<std::string, int64_t>, std::set<uint64_t>>;
void add_written(const Model& model, Written* written);

/// All sessions of a store with the keys that their payloads have. Errors: whatever cannot be
/// loaded; kConflict when a payload is none that was written as that version.
Result<Model> observe(serve::SessionStore& store, const Written& written);

}  // namespace tarn::power
