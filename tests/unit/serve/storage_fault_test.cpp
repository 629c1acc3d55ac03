// What the stores on files do when the disk fails, is full, or holds what we did not put there.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "serve/session_store.h"
#include "serve/storage/objects.h"
#include "serve/store.h"
#include "unit/serve/failing_vfs.h"
#include "unit/serve/places.h"

namespace tarn::serve {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kModel = 7;

class StorageFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tarn-fault-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<SessionStore> open(const std::string& url) {
    auto store = open_store(url, options_);
    EXPECT_TRUE(store.ok()) << store.error().to_string();
    return store.ok() ? std::move(*store) : nullptr;
  }
  Error open_error(const std::string& url) {
    const auto store = open_store(url, options_);
    EXPECT_FALSE(store.ok()) << url;
    return store.ok() ? Error{} : store.error();
  }
  std::string directory() const { return "dir:" + (folder_ / "d").string(); }
  std::string sqlite() const { return "sqlite:" + (folder_ / "s.db").string(); }

  static Result<SaveResult> save(SessionStore& store, std::string_view payload,
                                 int64_t expected_seq) {
    SaveRequest request;
    request.id = "a";
    request.payload = payload;
    request.expected_seq = expected_seq;
    request.model_fingerprint = kModel;
    return store.save(request);
  }
  static std::string load(SessionStore& store) {
    const auto record = store.load("a", kModel);
    return record.ok() ? record->payload : record.error().to_string();
  }

  fs::path folder_;
  StoreOptions options_;
};

/// Answers reads, and writes only while `takes_writes`, as a database that became a replica.
class Replica final : public Objects {
 public:
  Replica(const bool* takes_writes, ErrorCode code) : takes_writes_(takes_writes), code_(code) {}
  Result<MaybeValue> get(const std::string& name) override { return objects_->get(name); }
  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    return objects_->scan(prefix, after, limit);
  }
  Status update(const Planner& planner) override {
    if (*takes_writes_) return objects_->update(planner);
    return Error{code_, "is a replica", "store"};
  }
  Durability durability() const override { return objects_->durability(); }

 private:
  const std::unique_ptr<Objects> objects_ = open_memory_objects();
  const bool* takes_writes_;
  ErrorCode code_;
};

TEST_F(StorageFaultTest, APlaceThatTakesNoWritesFailsUntilItTakesOne) {
  for (const ErrorCode code : {ErrorCode::kReadOnly, ErrorCode::kIo}) {
    bool takes_writes = true;
    const auto store = *make_session_store(
        watch_objects(std::make_unique<Replica>(&takes_writes, code), "test"), options_);
    ASSERT_TRUE(save(*store, "x", 0).ok());
    EXPECT_FALSE(store->state().failing);
    takes_writes = false;
    EXPECT_EQ(save(*store, "y", 1).error().code, code);
    EXPECT_EQ(load(*store), "x");
    EXPECT_TRUE(store->state().failing);
    takes_writes = true;
    EXPECT_EQ(load(*store), "x");
    EXPECT_TRUE(store->state().failing);  // nothing shows that it takes writes
    EXPECT_EQ(save(*store, "z", 7).error().code, ErrorCode::kConflict);
    EXPECT_TRUE(store->state().failing);
    EXPECT_TRUE(store->acquire_lease("probe", "me", 1).ok());
    EXPECT_FALSE(store->state().failing);
  }
}

TEST_F(StorageFaultTest, AStoreThatWasRemovedUnderItIsNoEmptyStore) {
  for (const std::string& url : {directory(), sqlite()}) {
    auto store = open(url);
    ASSERT_TRUE(save(*store, "x", 0).ok());
    const fs::path place = url.substr(url.find(':') + 1);
    fs::rename(place, place.string() + "-aside");
    if (url == sqlite()) {
      EXPECT_EQ(store->load("a", kModel).error().code, ErrorCode::kIo) << url;
      EXPECT_TRUE(store->state().failing) << url;
      fs::rename(place.string() + "-aside", place);
      EXPECT_EQ(load(*store), "x");
      EXPECT_TRUE(save(*store, "x", 1).ok());
      ASSERT_TRUE(fs::copy_file(place, place.string() + "-aside"));
      fs::remove(place);
      fs::rename(place.string() + "-aside", place);  // another file of the same name
    } else {
      EXPECT_EQ(store->list("", 10).error().code, ErrorCode::kIo);
      fs::rename(place.string() + "-aside", place);
      EXPECT_EQ(load(*store), "x");
      EXPECT_TRUE(save(*store, "x", 1).ok());
      fs::remove_all(place / "s");
    }
    EXPECT_EQ(store->load("a", kModel).error().code, ErrorCode::kIo) << url;
    EXPECT_EQ(save(*store, "y", 2).error().code, ErrorCode::kIo) << url;
    EXPECT_TRUE(store->state().failing) << url;
    fs::remove_all(place);
    EXPECT_TRUE(save(*open(url), "new", 0).ok()) << url;
  }
}

TEST_F(StorageFaultTest, AFailedFlushMakesTheFolderReadOnly) {
  // The flushes of a save: record, folder r, head, folder s. Each fails in turn.
  for (int failing = 1; failing <= 4; ++failing) {
    const std::string url = directory() + std::to_string(failing);
    ASSERT_TRUE(save(*open(url), "old", 0).ok());
    int flushes = 0;
    options_.sync_file = [&](int fd) {
      if (++flushes != failing) return fsync(fd);
      errno = EIO;
      return -1;
    };
    auto store = open(url);
    const auto saved = save(*store, "new", 1);
    ASSERT_FALSE(saved.ok()) << failing;
    EXPECT_EQ(saved.error().code, ErrorCode::kIo);
    EXPECT_TRUE(store->state().read_only);
    EXPECT_NE(store->state().reason.find("fsync"), std::string::npos);
    EXPECT_EQ(flushes, failing) << "a failed flush was tried again";
    const std::string now = load(*store);
    EXPECT_TRUE(now == "old" || (failing == 4 && now == "new")) << failing << ": " << now;
    EXPECT_EQ(save(*store, "more", 1).error().code, ErrorCode::kReadOnly);
    EXPECT_EQ(store->acquire_lease("a", "me", 5).error().code, ErrorCode::kReadOnly);
    options_.sync_file = {};
    EXPECT_EQ(load(*open(url)), now);
  }
}

/// Runs `body` in a process whose files cannot grow past `bytes`.
int with_file_limit(rlim_t bytes, const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(StorageFaultTest, AFullDiskLeavesTheOldVersion) {
  for (const std::string& url : {directory(), sqlite()}) {
    const std::string old = noise(100'000, 1);
    ASSERT_TRUE(save(*open(url), old, 0).ok());
    const int outcome = with_file_limit(2 << 20, [&] {
      auto opened = open_store(url, options_);
      if (!opened.ok()) return 1;
      SessionStore& store = **opened;
      options_.chunk_above_bytes = int64_t{64} << 20;
      auto unchunked = open_store(url, options_);
      const auto saved = save(**unchunked, noise(5 << 20, 2), 1);
      if (saved.ok() || saved.error().code != ErrorCode::kResource) return 2;
      if (store.state().read_only || (*unchunked)->state().read_only) return 3;
      if (load(store) != old) return 4;
      if (!save(store, "small", 1).ok()) return 5;
      return load(store) == "small" ? 0 : 6;
    });
    EXPECT_EQ(outcome, 0) << url;
    auto store = open(url);
    EXPECT_EQ(load(*store), "small");
    EXPECT_EQ(store->load("a", kModel, 1)->payload, old);
  }
}

TEST_F(StorageFaultTest, NoFileSizeLimitMakesTheDatabaseReadOnly) {
  // Wherever the limit falls: in the log, its index or the database.
  for (rlim_t kib = 32; kib <= 4096; kib += kib < 1024 ? 16 : 128) {
    const std::string url = sqlite() + std::to_string(kib);
    ASSERT_TRUE(save(*open(url), noise(100'000, 1), 0).ok());
    const int outcome = with_file_limit(kib << 10, [&] {
      auto opened = open_store(url, options_);
      if (!opened.ok()) return opened.error().code == ErrorCode::kResource ? 0 : 1;
      SessionStore& store = **opened;
      for (int64_t seq = 1; seq <= 40; ++seq) {
        const auto saved = save(store, noise(150'000, static_cast<uint64_t>(seq)), seq);
        if (store.state().read_only) return 2;
        if (saved.ok()) continue;
        if (saved.error().code != ErrorCode::kResource) return 3;
        return store.load("a", kModel).ok() ? 0 : 4;
      }
      return 0;
    });
    EXPECT_EQ(outcome, 0) << kib;
  }
}

TEST_F(StorageFaultTest, AFullDatabaseLeavesTheOldVersion) {
  options_.max_store_bytes = 2 << 20;
  auto store = open(sqlite());
  const std::string old = noise(500'000, 3);
  ASSERT_TRUE(save(*store, old, 0).ok());
  const auto saved = save(*store, noise(4 << 20, 4), 1);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().code, ErrorCode::kResource);
  EXPECT_FALSE(store->state().read_only);
  EXPECT_EQ(load(*store), old);
  EXPECT_TRUE(save(*store, noise(400'000, 5), 1).ok());
  EXPECT_TRUE(store->remove("a").ok());
  EXPECT_TRUE(save(*store, noise(1 << 20, 6), 0).ok()) << "room that was freed is not used";
}

TEST_F(StorageFaultTest, AFailingDiskMakesTheDatabaseReadOnly) {
  for (const FailingVfs::What what : {FailingVfs::What::kSync, FailingVfs::What::kWrite}) {
    const std::string url = sqlite() + std::to_string(static_cast<int>(what));
    FailingVfs vfs;
    auto store = open(url);
    ASSERT_TRUE(save(*store, "old", 0).ok());
    vfs.fail_next(what);
    const auto saved = save(*store, "new", 1);
    ASSERT_FALSE(saved.ok());
    EXPECT_EQ(saved.error().code, ErrorCode::kIo) << saved.error().to_string();
    EXPECT_TRUE(store->state().read_only);
    // All was written before the flush failed, so it may be there; half a write may not.
    const std::string now = load(*store);
    EXPECT_TRUE(now == "old" || (now == "new" && what == FailingVfs::What::kSync)) << now;
    EXPECT_EQ(save(*store, "more", 1).error().code, ErrorCode::kReadOnly);
    store.reset();
    vfs.stop_failing();
    store = open(url);
    EXPECT_EQ(load(*store), now);
    EXPECT_TRUE(save(*store, "new", now == "old" ? 1 : 2).ok());
  }
}

TEST_F(StorageFaultTest, AnyFailingOperationOfASaveIsAllOrNothing) {
  auto payload = [](int64_t i) { return noise(300'000, static_cast<uint64_t>(i)); };
  FailingVfs vfs;
  ASSERT_TRUE(save(*open(sqlite()), payload(0), 0).ok());
  int64_t seq = 1;
  bool failed = true;
  for (int operation = 0; failed; ++operation) {
    ASSERT_LT(operation, 10'000);
    auto store = open(sqlite());
    vfs.fail_after(operation);
    const auto saved = save(*store, payload(seq), seq);
    failed = vfs.has_failed();
    vfs.stop_failing();
    store = open(sqlite());
    const auto record = store->load("a", kModel);
    ASSERT_TRUE(record.ok()) << operation << ": " << record.error().to_string();
    // An acknowledged save is there; one that failed may be there, but then it is there whole.
    if (saved.ok()) {
      EXPECT_EQ(record->seq, seq + 1);
    } else {
      EXPECT_TRUE(record->seq == seq || record->seq == seq + 1);
    }
    EXPECT_EQ(record->payload, payload(record->seq - 1)) << operation;
    seq = record->seq;
  }
}

TEST_F(StorageFaultTest, FollowsNoLinksAndWaitsForNoPipes) {
  {
    auto store = open(directory());
    ASSERT_TRUE(save(*store, "secret", 0).ok());
  }
  const fs::path head = folder_ / "d/s/a", elsewhere = folder_ / "elsewhere";
  fs::rename(head, elsewhere);
  fs::create_symlink(elsewhere, head);
  auto store = open(directory());
  EXPECT_EQ(store->load("a", kModel).error().code, ErrorCode::kInvalidArgument);
  fs::remove(head);
  ASSERT_EQ(mkfifo(head.c_str(), 0600), 0);
  EXPECT_FALSE(store->load("a", kModel).ok());
  fs::remove(head);
  fs::create_directory(head);
  EXPECT_FALSE(store->load("a", kModel).ok());
  fs::remove(head);
  fs::rename(elsewhere, head);
  EXPECT_EQ(load(*store), "secret");
  store.reset();

  fs::rename(folder_ / "d/r", folder_ / "r");
  fs::create_symlink(folder_ / "r", folder_ / "d/r");
  open_error(directory());
  ASSERT_TRUE(save(*open(sqlite()), "x", 0).ok());
  fs::create_symlink(folder_ / "s.db", folder_ / "link.db");
  open_error("sqlite:" + (folder_ / "link.db").string());
}

TEST_F(StorageFaultTest, TakesNoPlaceThatIsSomethingElse) {
  fs::create_directory(folder_ / "full");
  std::ofstream(folder_ / "full/letter.txt") << "mine";
  EXPECT_EQ(open_error("dir:" + (folder_ / "full").string()).code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(folder_ / "full/lock"));
  std::ofstream(folder_ / "text.db") << std::string(5000, 'x');
  EXPECT_EQ(open_error("sqlite:" + (folder_ / "text.db").string()).code, ErrorCode::kCorrupt);
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ / "other.db").c_str(), &db), SQLITE_OK);
  sqlite3_exec(db, "CREATE TABLE object(name, value)", nullptr, nullptr, nullptr);
  sqlite3_close(db);
  EXPECT_EQ(open_error("sqlite:" + (folder_ / "other.db").string()).code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(open_error("sqlite:" + (folder_ / "absent/x.db").string()).code, ErrorCode::kNotFound);
  for (const char* url : {"", "memory", "memory:x", "dir:", "sqlite:", "ftp://x", "/tmp"}) {
    EXPECT_EQ(open_error(url).code, ErrorCode::kInvalidArgument) << url;
  }
}

TEST_F(StorageFaultTest, CleansUpAfterAKilledWriter) {
  const fs::path root = folder_ / "d";
  ASSERT_TRUE(save(*open(directory()), "kept", 0).ok());
  std::ofstream(root / "writing") << "";
  std::ofstream(root / "temporary") << "half a rec";
  std::ofstream(root / "r/0123456789abcdef0123456789abcdef") << "never committed";
  {
    auto store = open(directory());
    EXPECT_EQ(load(*store), "kept");
  }
  EXPECT_FALSE(fs::exists(root / "r/0123456789abcdef0123456789abcdef"));
  EXPECT_FALSE(fs::exists(root / "writing"));
  EXPECT_TRUE(save(*open(directory()), "next", 1).ok());
  // Without the mark nothing is searched, and so nothing is removed.
  std::ofstream(root / "r/0123456789abcdef0123456789abcdef") << "unmarked";
  open(directory());
  EXPECT_TRUE(fs::exists(root / "r/0123456789abcdef0123456789abcdef"));
}

}  // namespace
}  // namespace tarn::serve
