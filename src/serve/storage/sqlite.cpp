#include <sqlite3.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "serve/storage/objects.h"
#include "serve/storage/pool.h"

namespace tarn::serve {
namespace {

constexpr int kApplicationId = 0x5441524e;  // "TARN"
constexpr int kUserVersion = 1;
// Records of some hundred KiB would hang in long chains of overflow pages of the usual size.
constexpr int64_t kPageBytes = 65536;

enum Query { kGet, kScan, kNames, kPut, kErase, kBegin, kCommit, kRollback, kQueryCount };
constexpr std::array<const char*, kQueryCount> kQueries = {
    "SELECT value FROM object WHERE name = ?1",
    "SELECT name, value FROM object WHERE name > ?1 AND name < ?2 ORDER BY name LIMIT ?3",
    "SELECT name FROM object WHERE name >= ?1 AND name < ?2 ORDER BY name",
    "INSERT INTO object(name, value) VALUES(?1, ?2) "
    "ON CONFLICT(name) DO UPDATE SET value = excluded.value",
    "DELETE FROM object WHERE name = ?1",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",
};

bool is_full(int code) { return code == ENOSPC || code == EDQUOT || code == EFBIG; }

/// One connection with its prepared statements. Threads: one at a time.
class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    for (sqlite3_stmt* statement : statements_) sqlite3_finalize(statement);
    sqlite3_close(db_);
  }

  Status open(const std::string& path, const StoreOptions& options);

  Result<MaybeValue> get(const std::string& name);
  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit);
  Result<std::vector<std::string>> names(const std::string& prefix);
  Status change(const Change& change);
  Status run(Query query);

  /// False after a failure that leaves the file's content in doubt.
  bool is_alive() const { return !stopped_; }

 private:
  friend class Row;
  Status create();
  Status execute(const std::string& sql);
  Result<int64_t> number(const std::string& sql);
  Error fail(int code, const std::string& action);

  std::string path_;
  sqlite3* db_ = nullptr;
  std::array<sqlite3_stmt*, kQueryCount> statements_{};
  int system_ = 0;  // errno of the last step; sqlite3_system_errno() misses that of a COMMIT
  bool stopped_ = false;
};

/// A run of a prepared statement; resets it at the end of the scope.
class Row {
 public:
  Row(Connection& connection, Query query)
      : connection_(connection), statement_(connection.statements_[query]) {}
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;
  ~Row() {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  void text(int index, const std::string& value) {
    sqlite3_bind_text64(statement_, index, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8);
  }
  void number(int index, int64_t value) { sqlite3_bind_int64(statement_, index, value); }
  int blob(int index, const std::string& value) {
    return sqlite3_bind_blob64(statement_, index, value.data(), value.size(), SQLITE_STATIC);
  }
  int step() {
    errno = 0;
    const int code = sqlite3_step(statement_);
    connection_.system_ = errno;
    return code;
  }
  std::string bytes(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), size);
  }

 private:
  Connection& connection_;
  sqlite3_stmt* statement_;
};

Error Connection::fail(int code, const std::string& action) {
  const int system = std::exchange(system_, 0);
  std::string message = action + " failed: " + sqlite3_errstr(code) + " (" + std::to_string(code) +
                        (system != 0 ? ", " + std::generic_category().message(system) : "") + ")";
  switch (code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_TOOBIG:
    case SQLITE_NOMEM: return {ErrorCode::kResource, std::move(message), path_};
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return {ErrorCode::kCorrupt, std::move(message), path_};
    case SQLITE_READONLY: return {ErrorCode::kReadOnly, std::move(message), path_};
    case SQLITE_IOERR:
      // After a failed flush the kernel may have dropped the pages, whatever the reason.
      if (is_full(system) && code != SQLITE_IOERR_FSYNC && code != SQLITE_IOERR_DIR_FSYNC)
        return {ErrorCode::kResource, std::move(message), path_};
      stopped_ = code != SQLITE_IOERR_READ && code != SQLITE_IOERR_SHORT_READ;
      return {ErrorCode::kIo, std::move(message), path_};
    default: return {ErrorCode::kIo, std::move(message), path_};
  }
}

Status Connection::execute(const std::string& sql) {
  errno = 0;
  const int code = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  system_ = errno;
  if (code != SQLITE_OK) return fail(sqlite3_extended_errcode(db_), sql);
  return {};
}

Result<int64_t> Connection::number(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  errno = 0;
  int code = sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr);
  if (code == SQLITE_OK) code = sqlite3_step(statement);
  system_ = errno;
  const int64_t value = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
  sqlite3_finalize(statement);
  if (code != SQLITE_ROW) return fail(sqlite3_extended_errcode(db_), sql);
  return value;
}

/// Makes the table, or finds it made by us.
Status Connection::create() {
  TARN_RETURN_IF_ERROR(execute("BEGIN IMMEDIATE"));
  TARN_ASSIGN(const int64_t application, number("PRAGMA application_id"));
  TARN_ASSIGN(const int64_t version, number("PRAGMA user_version"));
  TARN_ASSIGN(const int64_t tables, number("SELECT count(*) FROM sqlite_schema"));
  if (tables > 0 && application != kApplicationId) {
    return invalid_argument("is the database of another program", path_);
  }
  if (tables > 0 && version != kUserVersion) {
    return Error{ErrorCode::kUnsupported,
                 "has format version " + std::to_string(version) + ", this build reads " +
                     std::to_string(kUserVersion),
                 path_};
  }
  if (tables == 0) {
    TARN_RETURN_IF_ERROR(
        execute("PRAGMA application_id = " + std::to_string(kApplicationId) +
                "; PRAGMA user_version = " + std::to_string(kUserVersion) +
                "; CREATE TABLE object(name TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL)"));
  }
  return execute("COMMIT");
}

Status Connection::open(const std::string& path, const StoreOptions& options) {
  path_ = path;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
                    SQLITE_OPEN_PRIVATECACHE | SQLITE_OPEN_NOFOLLOW | SQLITE_OPEN_EXRESCODE;
  const int code = sqlite3_open_v2(path.c_str(), &db_, flags, nullptr);
  if (code != SQLITE_OK) {
    system_ = sqlite3_system_errno(db_);
    return fail(code, "opening the database");
  }
  sqlite3_busy_timeout(db_, static_cast<int>(options.busy_timeout_ms));
  TARN_RETURN_IF_ERROR(execute("PRAGMA page_size = " + std::to_string(kPageBytes)));
  TARN_RETURN_IF_ERROR(execute("PRAGMA journal_mode = WAL"));
  TARN_RETURN_IF_ERROR(
      execute(options.sync ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL"));
  TARN_RETURN_IF_ERROR(execute("PRAGMA journal_size_limit = 67108864"));
  if (options.max_store_bytes > 0) {
    TARN_RETURN_IF_ERROR(
        execute("PRAGMA max_page_count = " +
                std::to_string(std::max<int64_t>(1, options.max_store_bytes / kPageBytes))));
  }
  TARN_RETURN_IF_ERROR(create());
  for (int query = 0; query < kQueryCount; ++query) {
    const int prepared = sqlite3_prepare_v3(db_, kQueries[query], -1, SQLITE_PREPARE_PERSISTENT,
                                            &statements_[query], nullptr);
    if (prepared != SQLITE_OK) return fail(prepared, "preparing a statement");
  }
  return {};
}

Result<MaybeValue> Connection::get(const std::string& name) {
  Row row(*this, kGet);
  row.text(1, name);
  const int code = row.step();
  if (code == SQLITE_DONE) return MaybeValue();
  if (code != SQLITE_ROW) return fail(code, "reading " + name);
  return MaybeValue(row.bytes(0));
}

Result<std::vector<NamedValue>> Connection::scan(const std::string& prefix,
                                                 const std::string& after, int limit) {
  const std::string end = name_after(prefix);
  Row row(*this, kScan);
  row.text(1, after);
  row.text(2, end);
  row.number(3, limit);
  std::vector<NamedValue> rows;
  int code = SQLITE_ROW;
  while ((code = row.step()) == SQLITE_ROW) rows.emplace_back(row.bytes(0), row.bytes(1));
  if (code != SQLITE_DONE) return fail(code, "listing");
  return rows;
}

Result<std::vector<std::string>> Connection::names(const std::string& prefix) {
  const std::string end = name_after(prefix);
  Row row(*this, kNames);
  row.text(1, prefix);
  row.text(2, end);
  std::vector<std::string> names;
  int code = SQLITE_ROW;
  while ((code = row.step()) == SQLITE_ROW) names.push_back(row.bytes(0));
  if (code != SQLITE_DONE) return fail(code, "listing");
  return names;
}

Status Connection::change(const Change& change) {
  Row row(*this, change.value ? kPut : kErase);
  row.text(1, change.name);
  int code = change.value ? row.blob(2, *change.value) : SQLITE_OK;
  if (code == SQLITE_OK) code = row.step();
  if (code != SQLITE_OK && code != SQLITE_DONE) return fail(code, "writing " + change.name);
  return {};
}

Status Connection::run(Query query) {
  Row row(*this, query);
  const int code = row.step();
  if (code != SQLITE_DONE) return fail(code, kQueries[query]);
  return {};
}

/// One table of names and values; every write is one transaction. Connections wait in a pool, so
/// that loads go beside a save.
class SqliteObjects final : public Objects {
 public:
  SqliteObjects(std::string path, const StoreOptions& options)
      : path_(std::move(path)), options_(options) {}

  Status open() {
    TARN_ASSIGN(std::unique_ptr<Connection> connection, pool_.take(path_, options_));
    pool_.give(std::move(connection));
    if (::stat(path_.c_str(), &file_) != 0) {
      return Error{ErrorCode::kIo, "looking at the file: " + std::generic_category().message(errno),
                   path_};
    }
    return {};
  }

  Result<MaybeValue> get(const std::string& name) override {
    TARN_ASSIGN(std::unique_ptr<Connection> connection, take());
    Result<MaybeValue> value = connection->get(name);
    pool_.give(std::move(connection));
    return value;
  }

  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    TARN_ASSIGN(std::unique_ptr<Connection> connection, take());
    auto rows = connection->scan(prefix, after, limit);
    pool_.give(std::move(connection));
    return rows;
  }

  Status update(const Planner& planner) override {
    if (const StoreState now = state(); now.read_only) {
      return Error{ErrorCode::kReadOnly, "takes no writes since this failed: " + now.reason, path_};
    }
    TARN_ASSIGN(std::unique_ptr<Connection> connection, take());
    // Threads queue here in turn: SQLite's own waiting is a sleep.
    const std::lock_guard one_writer(writer_);
    const Status status = transact(*connection, planner);
    if (!connection->is_alive() && !status.ok()) {
      const std::lock_guard lock(mutex_);
      if (!state_.read_only) state_ = {.read_only = true, .reason = status.error().to_string()};
    }
    pool_.give(std::move(connection));
    return status;
  }

  StoreState state() const override {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  Durability durability() const override {
    return options_.sync ? Durability::kPower : Durability::kProcess;
  }

 private:
  class Reader final : public PlanReader {
   public:
    explicit Reader(Connection& connection) : connection_(&connection) {}
    Result<MaybeValue> get(const std::string& name) override { return connection_->get(name); }
    Result<std::vector<std::string>> names(const std::string& prefix) override {
      return connection_->names(prefix);
    }

   private:
    Connection* connection_;
  };

  static Status apply(Connection& connection, const Planner& planner) {
    Reader reader(connection);
    TARN_ASSIGN(const Plan plan, planner(reader));
    for (const Change& change : plan.before) TARN_RETURN_IF_ERROR(connection.change(change));
    if (plan.commit) TARN_RETURN_IF_ERROR(connection.change(*plan.commit));
    for (const Change& change : plan.after) TARN_RETURN_IF_ERROR(connection.change(change));
    return connection.run(kCommit);
  }

  static Status transact(Connection& connection, const Planner& planner) {
    TARN_RETURN_IF_ERROR(connection.run(kBegin));
    Status status = apply(connection, planner);
    // Some failures have rolled back already; then this one has nothing to do and says so.
    if (!status.ok()) static_cast<void>(connection.run(kRollback).ok());
    return status;
  }

  /// A connection, if the database is still the file at its path: what is written to a file that
  /// was removed or replaced is gone with the program.
  Result<std::unique_ptr<Connection>> take() {
    struct stat now {};
    const bool found = ::stat(path_.c_str(), &now) == 0;
    if (!found || now.st_ino != file_.st_ino || now.st_dev != file_.st_dev) {
      return Error{ErrorCode::kIo,
                   std::string("the database was ") + (found ? "replaced" : "removed") +
                       " while it was open: put it back, or start the program anew",
                   path_};
    }
    return pool_.take(path_, options_);
  }

  std::string path_;
  StoreOptions options_;
  struct stat file_ {};
  std::mutex writer_;
  mutable std::mutex mutex_;
  Pool<Connection> pool_;
  StoreState state_;
};

}  // namespace

Result<std::unique_ptr<Objects>> open_sqlite_objects(const std::string& path,
                                                     const StoreOptions& options) {
  const std::filesystem::path file(path);
  if (!file.has_filename()) return invalid_argument("wanted sqlite:/path/file.db", "store");
  // Links on the way to the folder are the administrator's; the file itself may be none.
  std::error_code code;
  const std::filesystem::path folder =
      std::filesystem::canonical(file.has_parent_path() ? file.parent_path() : ".", code);
  if (code) return Error{ErrorCode::kNotFound, "its folder does not exist", path};
  const std::filesystem::path real = folder / file.filename();
  const auto status = std::filesystem::symlink_status(real, code);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return invalid_argument("is not a regular file", path);
  }
  auto objects = std::make_unique<SqliteObjects>(real.string(), options);
  TARN_RETURN_IF_ERROR(objects->open());
  return std::unique_ptr<Objects>(std::move(objects));
}

}  // namespace tarn::serve
