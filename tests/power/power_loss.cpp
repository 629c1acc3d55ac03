// Loses the power of a model of a disk after every request that a store makes, and looks at what the
// store finds then.
//   power_loss smoke [SEED [dir|sqlite]]   seconds; one of the tests of label fast
//   power_loss full [SEED [dir|sqlite]]    `make power-test`
// Exit status 0: what was acknowledged at level `power` was always there, nothing torn was served,
// the next changes succeeded; and stores of level `process` did lose saves, so the test can fail.
#include <sqlite3.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "power/disk_model.h"
#include "power/disk_record.h"
#include "power/workload.h"
#include "serve/store.h"

namespace tarn::power {
namespace {

namespace fs = std::filesystem;

struct Setting {
  const char* scheme;
  bool sync;
  int runs;         ///< with seeds that follow each other
  int steps;        ///< of a run
  int samples;      ///< states of the disk after each request
  int again_every;  ///< of so many states one is run on and loses the power again
};

/// What happened up to some moment of a run, and whether the caller knows.
struct Stage {
  Model model;
  bool acknowledged = true;
  std::string what;
};

struct History {
  Tree start;
  std::vector<Operation> log;
  std::vector<Stage> stages;
};

enum class Verdict { kFine, kLost, kMixed, kDamaged, kTorn, kClosed, kStuck, kCount };
constexpr std::array<const char*, static_cast<size_t>(Verdict::kCount)> kVerdicts = {
    "fine", "lost", "mixed", "damaged", "torn", "not opened", "stuck"};

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "power_loss: %s\n", what.c_str());
  std::exit(1);
}

/// SQLite that does the same at every run and moves its log into the database every few saves.
void prepare_sqlite() {
  sqlite3_vfs_find(nullptr)->xRandomness = [](sqlite3_vfs*, int bytes, char* out) {
    static Chance chance(0);
    for (int i = 0; i < bytes; ++i) out[i] = static_cast<char>(chance.bits());
    return bytes;
  };
  const auto checkpoint_often = [](sqlite3* db, const char**, const void*) {
    return sqlite3_wal_autocheckpoint(db, 40);
  };
  int (*entry)(sqlite3*, const char**, const void*) = checkpoint_often;
  sqlite3_auto_extension(reinterpret_cast<void (*)()>(entry));
}

class Explorer {
 public:
  Explorer(const Setting& setting, std::string folder)
      : setting_(setting), folder_(std::move(folder)) {
    options_.sync = setting.sync;
    options_.keep_versions = kKeepVersions;
    options_.chunk_above_bytes = 100'000;
    // A lease of a second is over at the next look at the clock.
    options_.now_ms = [this] { return clock_ms_ += 2000; };
  }

  /// States that were found, by verdict.
  using Counts = std::array<int64_t, static_cast<size_t>(Verdict::kCount)>;
  const Counts& counts() const { return counts_; }

  void run(uint64_t seed) {
    seed_ = seed;
    written_.clear();
    Chance chance(seed);
    explore(record({}, {}, setting_.steps, chance), seed, setting_.samples, true);
  }
  void print() const;

 private:
  std::string url() const {
    return std::strcmp(setting_.scheme, "dir") == 0 ? "dir:" + folder_ + "/var/sessions"
                                                    : "sqlite:" + folder_ + "/sessions.db";
  }
  serve::Durability wanted_durability() const {
    return setting_.sync ? serve::Durability::kPower : serve::Durability::kProcess;
  }
  std::unique_ptr<serve::SessionStore> open() const {
    auto store = serve::open_store(url(), options_);
    if (!store.ok()) give_up(store.error().to_string());
    if ((*store)->durability() != wanted_durability()) give_up("the store names another level");
    return std::move(*store);
  }

  History record(const Tree& start, const Model& model, int steps, Chance& chance);
  void acknowledge(const Action& action, History* history);
  void kill_writer(History* history, std::unique_ptr<serve::SessionStore>* store, Chance& chance);
  void explore(const History& history, uint64_t seed, int samples, bool again);
  Verdict check(const Tree& tree, const History& history, size_t from, size_t to, Chance& chance,
                size_t* found, std::string* why);
  Status go_on(serve::SessionStore& store, Model model, Chance& chance) const;
  void report(Verdict verdict, const History& history, size_t cut, size_t from, uint64_t seed,
              const std::string& why) const;

  Setting setting_;
  std::string folder_;
  uint64_t seed_ = 0;
  serve::StoreOptions options_;
  int64_t clock_ms_ = 1'700'000'000'000;
  Written written_;
  Counts counts_{};
  int64_t requests_ = 0, changes_ = 0, kills_ = 0, again_ = 0;
};

void Explorer::acknowledge(const Action& action, History* history) {
  history->stages.push_back({action.after, true, action.what});
  mark(static_cast<int64_t>(history->stages.size()) - 1);
  add_written(action.after, &written_);
  ++changes_;
}

/// Another process that writes and is killed somewhere on its way, while `store` is open.
void Explorer::kill_writer(History* history, std::unique_ptr<serve::SessionStore>* store,
                           Chance& chance) {
  const Model before = history->stages.back().model;
  const Action action = choose_action(before, chance);
  auto victim = open();
  // Just before a flush what it did is seen and yet can be lost.
  const bool flushes = chance.under(0.5);
  refuse_after(static_cast<int>(chance.below(flushes ? 5 : 16)), flushes);
  const Status status = action.run(*victim);
  victim.reset();
  refuse_after(-1);
  if (status.ok()) return acknowledge(action, history);
  if (!has_refused()) give_up(action.what + " failed: " + status.error().to_string());
  ++kills_;
  if (chance.under(0.7)) {
    store->reset();
    *store = open();
  }
  add_written(action.after, &written_);
  const Result<Model> seen = observe(**store, written_);
  if (!seen.ok()) give_up("after a kill: " + seen.error().to_string());
  const bool seen_it = same_versions(*seen, action.after);
  if (!seen_it && !same_versions(*seen, before)) {
    give_up("a killed writer left neither the old nor the new state: " + action.what);
  }
  history->stages.push_back({action.after, false, action.what + " (killed)"});
  // SQLite's readers do not see what is whole in the log until somebody recovers it.
  if (!seen_it) history->stages.push_back({before, false, action.what + " (killed, not seen)"});
}

History Explorer::record(const Tree& start, const Model& model, int steps, Chance& chance) {
  write_tree(folder_, start);
  History history{start, {}, {{model, true, "start"}}};
  start_recording(folder_, start);
  if (start.empty()) {  // somebody is killed while making the store
    refuse_after(static_cast<int>(seed_ % 8), true);
    static_cast<void>(serve::open_store(url(), options_).ok());
    refuse_after(-1);
  }
  auto store = open();
  for (int step = 0; step < steps; ++step) {
    const size_t kind = chance.below(10);
    if (kind == 0) {
      store.reset();
      store = open();
    } else if (kind < 5) {
      kill_writer(&history, &store, chance);
    } else {
      const Action action = choose_action(history.stages.back().model, chance);
      const Status status = action.run(*store);
      if (!status.ok()) give_up(action.what + " failed: " + status.error().to_string());
      acknowledge(action, &history);
    }
  }
  store.reset();
  history.log = stop_recording();
  requests_ += static_cast<int64_t>(history.log.size());
  Disk disk(start);
  for (const Operation& operation : history.log) disk.advance(operation);
  const Tree files = read_tree(folder_), recorded = disk.whole();
  const auto [is, should] =
      std::mismatch(files.begin(), files.end(), recorded.begin(), recorded.end());
  if (files != recorded) {
    give_up("the record is not what was done to the files: " +
            (is == files.end() ? should->first : is->first));
  }
  return history;
}

/// After a loss everything must work as before it: changes, and what they leave behind.
Status Explorer::go_on(serve::SessionStore& store, Model model, Chance& chance) const {
  Written written = written_;
  for (int step = 0; step < 3; ++step) {
    Action action = choose_action(model, chance);
    const Status status = action.run(store);
    if (!status.ok()) {
      return Error{status.error().code, action.what + ": " + status.error().to_string(), "next"};
    }
    model = std::move(action.after);
    add_written(model, &written);
    if (step == 1) TARN_RETURN_IF_ERROR(store.collect());
  }
  TARN_ASSIGN(const Model seen, observe(store, written));
  if (same_versions(seen, model)) return {};
  return Error{ErrorCode::kCorrupt, "further changes went wrong", "next"};
}

Verdict Explorer::check(const Tree& tree, const History& history, size_t from, size_t to,
                        Chance& chance, size_t* found, std::string* why) {
  Verdict verdict = Verdict::kMixed;
  // A session that was removed looks like one before its first save: both are tried.
  for (*found = to;; --*found) {
    write_tree(folder_, tree);
    const auto store = serve::open_store(url(), options_);
    if (!store.ok()) {
      *why = store.error().to_string();
      return Verdict::kClosed;
    }
    const Result<Model> seen = observe(**store, written_);
    if (!seen.ok()) {
      *why = seen.error().to_string();
      return seen.error().code == ErrorCode::kConflict ? Verdict::kTorn : Verdict::kDamaged;
    }
    while (!same_versions(*seen, history.stages[*found].model) && *found > 0) --*found;
    if (!same_versions(*seen, history.stages[*found].model)) return verdict;
    const Status next = go_on(**store, history.stages[*found].model, chance);
    if (next.ok()) return *found >= from ? Verdict::kFine : Verdict::kLost;
    *why = next.error().to_string();
    verdict = Verdict::kStuck;
    if (*found == 0) return verdict;
  }
}

void Explorer::explore(const History& history, uint64_t seed, int samples, bool again) {
  Disk disk(history.start);
  size_t from = 0;  // the last stage that was acknowledged
  for (size_t cut = 0; cut <= history.log.size(); ++cut) {
    if (cut > 0) {
      const Operation& operation = history.log[cut - 1];
      disk.advance(operation);
      if (operation.kind == Operation::Kind::kMark) from = static_cast<size_t>(operation.offset);
    }
    size_t to = from;  // the one that was under way
    do {
      to = std::min(to + 1, history.stages.size() - 1);
    } while (to + 1 < history.stages.size() && !history.stages[to].acknowledged);
    for (int sample = 0; sample < samples; ++sample) {
      const uint64_t own =
          seed * 0x9e3779b97f4a7c15u + cut * 1000003 + static_cast<uint64_t>(sample);
      Chance chance(own);
      const Tree tree = disk.after_power_loss(chance);
      size_t found = 0;
      std::string why;
      const Verdict verdict = check(tree, history, from, to, chance, &found, &why);
      ++counts_[static_cast<size_t>(verdict)];
      if (verdict != Verdict::kFine && setting_.sync) report(verdict, history, cut, from, own, why);
      if (verdict != Verdict::kFine || !again || chance.below(setting_.again_every) != 0) continue;
      ++again_;
      explore(record(tree, history.stages[found].model, 4, chance), own, 1, false);
    }
  }
}

void Explorer::report(Verdict verdict, const History& history, size_t cut, size_t from,
                      uint64_t seed, const std::string& why) const {
  std::fprintf(stderr, "%s: %s after %zu requests (state %016llx), acknowledged was: %s. %s\n",
               setting_.scheme, kVerdicts[static_cast<size_t>(verdict)], cut,
               static_cast<unsigned long long>(seed), history.stages[from].what.c_str(),
               why.c_str());
}

void Explorer::print() const {
  std::printf("%s, durability %s: %lld requests of %lld changes, %lld writers killed; states:",
              setting_.scheme, durability_name(wanted_durability()),
              static_cast<long long>(requests_), static_cast<long long>(changes_),
              static_cast<long long>(kills_));
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (i < 2 || counts_[i] > 0) {
      std::printf(" %lld %s", static_cast<long long>(counts_[i]), kVerdicts[i]);
    }
  }
  std::printf("; %lld of them lost the power again\n", static_cast<long long>(again_));
}

/// Whether the verdicts are those that the setting's level promises.
bool keeps_promise(const Setting& setting, const Explorer::Counts& counts) {
  int64_t states = 0;
  for (const int64_t count : counts) states += count;
  const auto of = [&](Verdict verdict) { return counts[static_cast<size_t>(verdict)]; };
  if (setting.sync) return states > 0 && of(Verdict::kFine) == states;
  if (of(Verdict::kFine) == states || of(Verdict::kTorn) > 0) return false;
  // docs/operations.md: SQLite's last saves may be lost, never torn. The folder promises nothing.
  return std::strcmp(setting.scheme, "dir") == 0 ||
         of(Verdict::kFine) + of(Verdict::kLost) == states;
}

int run(bool full, uint64_t seed, const std::string& only) {
  // Thousands of states are written for one look each: rather into memory.
  const bool to_memory = std::getenv("TMPDIR") == nullptr && fs::is_directory("/dev/shm");
  const fs::path above = to_memory ? fs::path("/dev/shm") : fs::temp_directory_path();
  std::string folder = (above / "tarn-power-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) give_up("cannot make a temporary folder");
  folder = fs::canonical(folder).string();
  prepare_sqlite();
  const int runs = full ? 16 : 8;
  std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(seed) + runs - 1);
  bool good = true;
  for (const char* scheme : {"dir", "sqlite"}) {
    if (!only.empty() && only != scheme) continue;
    // Without flushes losses are soon found.
    for (const Setting& setting :
         {full ? Setting{scheme, true, runs, 40, 4, 200} : Setting{scheme, true, runs, 12, 1, 100},
          Setting{scheme, false, 2, 8, 1, 100}}) {
      Explorer explorer(setting, folder + "/disk");
      for (int i = 0; i < setting.runs; ++i) explorer.run(seed + static_cast<uint64_t>(i));
      explorer.print();
      if (keeps_promise(setting, explorer.counts())) continue;
      std::printf("that is not what its durability promises\n");
      good = false;
    }
  }
  fs::remove_all(folder);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace tarn::power

int main(int argc, char** argv) {
  const std::string form = argc > 1 ? argv[1] : "", only = argc > 3 ? argv[3] : "";
  if (argc > 4 || (form != "smoke" && form != "full") ||
      (!only.empty() && only != "dir" && only != "sqlite")) {
    std::fprintf(stderr, "usage: %s smoke|full [SEED [dir|sqlite]]\n", argv[0]);
    return 2;
  }
  return tarn::power::run(form == "full", argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1, only);
}
