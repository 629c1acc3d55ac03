#include <libpq-fe.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "serve/storage/deadline.h"
#include "serve/storage/objects.h"
#include "serve/storage/pool.h"

namespace tarn::serve {
namespace {

// Writes that met others are run again; each time somebody else has got on.
constexpr int kMaxAttempts = 200;

constexpr const char* kGet = "SELECT value FROM tarn_object WHERE name = $1";
constexpr const char* kLock = "SELECT value FROM tarn_object WHERE name = $1 FOR UPDATE";
constexpr const char* kScan =
    "SELECT name, value FROM tarn_object WHERE name > $1 AND name < $2 ORDER BY name "
    "LIMIT $3::text::int";
constexpr const char* kNames =
    "SELECT name FROM tarn_object WHERE name >= $1 AND name < $2 ORDER BY name";
constexpr const char* kPut =
    "INSERT INTO tarn_object(name, value) VALUES($1, $2) "
    "ON CONFLICT(name) DO UPDATE SET value = excluded.value";
constexpr const char* kErase = "DELETE FROM tarn_object WHERE name = $1";
// Names sort by their bytes, whatever the database's language; payloads are noise to a compressor.
constexpr const char* kSettings =
    "SELECT current_setting('synchronous_commit'), current_setting('fsync')";
constexpr const char* kIsThere = "SELECT to_regclass('tarn_object')::text";
constexpr const char* kCreate =
    "CREATE TABLE IF NOT EXISTS tarn_object("
    "name text COLLATE \"C\" PRIMARY KEY, value bytea NOT NULL);"
    "ALTER TABLE tarn_object ALTER COLUMN value SET STORAGE EXTERNAL";

struct FreeResult {
  void operator()(PGresult* result) const { PQclear(result); }
};
using QueryResult = std::unique_ptr<PGresult, FreeResult>;

/// Whether another transaction was in the way, and this one may be run again.
bool is_retriable(const std::string& state) {
  return state == "40001" || state == "40P01" || state == "23505";
}

/// One parameter; all are sent in binary, which for text is its bytes.
struct Parameter {
  std::string_view bytes;
};

/// One connection. Nothing waits longer than to the deadline; one that passed it is not alive, for
/// its answer may still come. Threads: one at a time.
class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { PQfinish(connection_); }

  Status open(const std::string& url, const StoreOptions& options, const Deadline& deadline);
  /// The end of what comes next.
  void set_deadline(const Deadline& deadline) { deadline_ = deadline; }
  Result<QueryResult> query(const char* sql, const std::vector<Parameter>& parameters = {});
  Result<MaybeValue> value(const char* sql, const std::string& name);
  Status change(const Change& change);
  /// Makes the table unless it is there.
  Status create();
  bool is_alive() const { return !ended_ && PQstatus(connection_) == CONNECTION_OK; }
  /// SQLSTATE of the last failure.
  const std::string& failure() const { return failure_; }

 private:
  Error fail(const PGresult* result);
  Error time_out();
  /// Waits until one of the poll() events is there; 0: the deadline came first.
  short wait(short events) const;
  /// Sends what was queued and reads the last result.
  Result<QueryResult> finish(bool queued);
  PGconn* connection_ = nullptr;
  Deadline deadline_;
  std::string failure_;
  bool ended_ = false;  // the database left, or said that it would
};

Error Connection::fail(const PGresult* result) {
  const char* state = result == nullptr ? nullptr : PQresultErrorField(result, PG_DIAG_SQLSTATE);
  const char* primary =
      result == nullptr ? nullptr : PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
  failure_ = state == nullptr ? "" : state;
  // Without a state it is not the database that speaks: libpq lost it, and may not say so in its status.
  ended_ = ended_ || failure_.empty() || failure_.starts_with("57P");
  std::string message = primary != nullptr ? primary : PQerrorMessage(connection_);
  while (!message.empty() && message.back() == '\n') message.pop_back();
  ErrorCode code = ErrorCode::kIo;
  if (failure_.starts_with("53")) code = ErrorCode::kResource;  // disk full, out of memory
  if (failure_ == "54000") code = ErrorCode::kResource;
  if (failure_ == "25006") code = ErrorCode::kReadOnly;
  if (failure_.starts_with("XX")) code = ErrorCode::kCorrupt;
  if (is_retriable(failure_)) code = ErrorCode::kConflict;
  return {code, "PostgreSQL says: " + message + (state != nullptr ? " (" + failure_ + ")" : ""),
          "store"};
}

Error Connection::time_out() {
  failure_.clear();
  ended_ = true;
  // Otherwise PQfinish() would wait to say goodbye.
  if (const int fd = PQsocket(connection_); fd >= 0) ::shutdown(fd, SHUT_RDWR);
  return deadline_.error("PostgreSQL did not answer");
}

short Connection::wait(short events) const {
  pollfd entry{PQsocket(connection_), events, 0};
  if (entry.fd < 0) return POLLERR;  // libpq says why at its next call
  while (const int64_t left = deadline_.left_ms()) {
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return entry.revents;
    if (ready < 0 && errno != EINTR) return POLLERR;
  }
  return 0;
}

Result<QueryResult> Connection::finish(bool queued) {
  if (!queued) return fail(nullptr);
  // A server whose answer is not read may not read either.
  while (PQflush(connection_) == 1) {
    const short ready = wait(POLLIN | POLLOUT);
    if (ready == 0) return time_out();
    if ((ready & ~POLLOUT) != 0 && PQconsumeInput(connection_) == 0) break;
  }
  QueryResult last;
  while (true) {
    while (PQisBusy(connection_) != 0) {
      if (wait(POLLIN) == 0) return time_out();
      if (PQconsumeInput(connection_) == 0) break;  // the result that comes next tells why
    }
    QueryResult next(PQgetResult(connection_));
    if (next == nullptr) break;
    last = std::move(next);
  }
  const ExecStatusType status = PQresultStatus(last.get());
  if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) return fail(last.get());
  return last;
}

Result<QueryResult> Connection::query(const char* sql, const std::vector<Parameter>& parameters) {
  constexpr size_t kMaxParameters = 4;
  TARN_CHECK(parameters.size() <= kMaxParameters);
  std::array<const char*, kMaxParameters> values{};
  std::array<int, kMaxParameters> lengths{};
  std::array<int, kMaxParameters> formats{};
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].bytes.size() > (size_t{1} << 30)) {
      return Error{ErrorCode::kResource, "has more bytes than one value can have", "store"};
    }
    values[i] = parameters[i].bytes.data();
    lengths[i] = static_cast<int>(parameters[i].bytes.size());
    formats[i] = 1;
  }
  return finish(PQsendQueryParams(connection_, sql, static_cast<int>(parameters.size()), nullptr,
                                  values.data(), lengths.data(), formats.data(), 1) == 1);
}

std::string cell(const QueryResult& result, int row, int column) {
  return {PQgetvalue(result.get(), row, column),
          static_cast<size_t>(PQgetlength(result.get(), row, column))};
}

Result<MaybeValue> Connection::value(const char* sql, const std::string& name) {
  TARN_ASSIGN(const QueryResult result, query(sql, {{name}}));
  return PQntuples(result.get()) == 0 ? MaybeValue() : MaybeValue(cell(result, 0, 0));
}

Status Connection::change(const Change& change) {
  const auto result =
      change.value ? query(kPut, {{change.name}, {*change.value}}) : query(kErase, {{change.name}});
  if (!result.ok()) return result.error();
  return {};
}

Status Connection::create() {
  TARN_ASSIGN(const QueryResult found, query(kIsThere));
  if (PQgetisnull(found.get(), 0, 0) == 0) return {};
  // One transaction. Of two servers that start at once one may fail here, and then finds the table.
  const auto made = finish(PQsendQuery(connection_, kCreate) == 1);
  if (made.ok()) return {};
  TARN_ASSIGN(const QueryResult again, query(kIsThere));
  if (PQgetisnull(again.get(), 0, 0) == 0) return {};
  return made.error();
}

Status Connection::open(const std::string& url, const StoreOptions& options,
                        const Deadline& deadline) {
  deadline_ = deadline;
  if (deadline_.passed()) return time_out();
  connection_ = PQconnectStart(url.c_str());
  short awaited = POLLOUT;
  while (PQstatus(connection_) != CONNECTION_BAD) {
    if (wait(awaited) == 0) return time_out();
    const PostgresPollingStatusType progress = PQconnectPoll(connection_);
    if (progress == PGRES_POLLING_OK || progress == PGRES_POLLING_FAILED) break;
    awaited = progress == PGRES_POLLING_READING ? POLLIN : POLLOUT;
  }
  if (!is_alive()) return fail(nullptr);
  if (PQsetnonblocking(connection_, 1) != 0) return fail(nullptr);
  PQsetNoticeProcessor(
      connection_, [](void*, const char*) {}, nullptr);
  const std::string timeout = std::to_string(options.busy_timeout_ms);
  TARN_RETURN_IF_ERROR(query("SELECT set_config('lock_timeout', $1, false)", {{timeout}}));
  return {};
}

/// One table of names and values. A write is one serialisable transaction that holds the rows it
/// read; where two disagree, PostgreSQL ends one of them and it runs again.
class PostgresObjects final : public Objects {
 public:
  PostgresObjects(std::string url, const StoreOptions& options)
      : url_(std::move(url)), options_(options) {}

  Status open() {
    TARN_ASSIGN(std::unique_ptr<Connection> connection, take(Deadline(options_)));
    TARN_RETURN_IF_ERROR(connection->create());
    const Status status = read_settings(*connection);
    pool_.give(std::move(connection));
    return status;
  }

  Result<MaybeValue> get(const std::string& name) override {
    return read<MaybeValue>([&](Connection& connection) { return connection.value(kGet, name); });
  }

  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    const std::string rows = std::to_string(limit), end = name_after(prefix);
    TARN_ASSIGN(const QueryResult result, read<QueryResult>([&](Connection& connection) {
                  return connection.query(kScan, {{after}, {end}, {rows}});
                }));
    std::vector<NamedValue> values;
    for (int row = 0; row < PQntuples(result.get()); ++row) {
      values.emplace_back(cell(result, row, 0), cell(result, row, 1));
    }
    return values;
  }

  Status update(const Planner& planner) override {
    const Deadline deadline(options_);
    Status status;
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      TARN_ASSIGN(std::unique_ptr<Connection> connection, take(deadline));
      bool again = false;
      status = transact(*connection, planner, &again);
      pool_.give(std::move(connection));
      if (!again) return status;
      std::this_thread::sleep_for(std::chrono::microseconds(100 * std::min(attempt + 1, 50)));
    }
    return status;
  }

  Durability durability() const override { return durability_; }

 private:
  /// What a save will survive: with every write, as the settings may change while the server runs.
  Status read_settings(Connection& connection) {
    TARN_ASSIGN(const QueryResult settings, connection.query(kSettings));
    const std::string commit = cell(settings, 0, 0), flush = cell(settings, 0, 1);
    // "off" tells of a commit before the log is on disk, and without fsync nothing ever is.
    durability_ = commit != "off" && flush == "on" ? Durability::kPower : Durability::kProcess;
    return {};
  }

  class Reader final : public PlanReader {
   public:
    explicit Reader(Connection& connection) : connection_(&connection) {}
    Result<MaybeValue> get(const std::string& name) override {
      // Heads are what writers meet at: those wait for each other. The rest is checked at the end.
      return note(connection_->value(name[0] == 's' ? kLock : kGet, name));
    }
    Result<std::vector<std::string>> names(const std::string& prefix) override {
      const std::string end = name_after(prefix);
      TARN_ASSIGN(const QueryResult result, note(connection_->query(kNames, {{prefix}, {end}})));
      std::vector<std::string> names;
      for (int row = 0; row < PQntuples(result.get()); ++row) {
        names.push_back(cell(result, row, 0));
      }
      return names;
    }
    bool failed() const { return failed_; }

   private:
    template <class T>
    Result<T> note(Result<T> result) {
      failed_ = failed_ || !result.ok();
      return result;
    }
    Connection* connection_;
    bool failed_ = false;
  };

  Result<std::unique_ptr<Connection>> take(const Deadline& deadline) {
    TARN_ASSIGN(std::unique_ptr<Connection> connection, pool_.take(url_, options_, deadline));
    connection->set_deadline(deadline);
    return connection;
  }

  static Status apply(Connection& connection, const Plan& plan) {
    for (const Change& change : plan.before) TARN_RETURN_IF_ERROR(connection.change(change));
    if (plan.commit) TARN_RETURN_IF_ERROR(connection.change(*plan.commit));
    for (const Change& change : plan.after) TARN_RETURN_IF_ERROR(connection.change(change));
    auto committed = connection.query("COMMIT");
    if (!committed.ok()) return committed.error();
    return {};
  }

  /// `again`: nothing was changed, and another run may succeed.
  Status begin(Connection& connection) {
    TARN_RETURN_IF_ERROR(read_settings(connection));
    TARN_RETURN_IF_ERROR(connection.query("BEGIN ISOLATION LEVEL SERIALIZABLE"));
    return {};
  }

  Status transact(Connection& connection, const Planner& planner, bool* again) {
    const Status begun = begin(connection);
    if (!begun.ok()) {
      *again = !connection.is_alive();  // the database was started anew since the last call
      return begun;
    }
    Reader reader(connection);
    const Result<Plan> plan = planner(reader);
    Status status = plan.ok() ? apply(connection, *plan) : Status(plan.error());
    if (status.ok()) return status;
    *again = (plan.ok() || reader.failed()) && is_retriable(connection.failure());
    if (connection.is_alive()) static_cast<void>(connection.query("ROLLBACK").ok());
    return status;
  }

  /// Asks once more when the connection broke: reading twice does no harm.
  template <class T, class Ask>
  Result<T> read(Ask ask) {
    const Deadline deadline(options_);
    for (int attempt = 0;; ++attempt) {
      TARN_ASSIGN(std::unique_ptr<Connection> connection, take(deadline));
      Result<T> answer = ask(*connection);
      const bool lost = !connection->is_alive();
      pool_.give(std::move(connection));
      if (answer.ok() || !lost || attempt > 0) return answer;
    }
  }

  std::string url_;
  StoreOptions options_;
  std::atomic<Durability> durability_{Durability::kProcess};
  Pool<Connection> pool_;
};

}  // namespace

Result<std::unique_ptr<Objects>> open_postgres_objects(const std::string& url,
                                                       const StoreOptions& options) {
  auto objects = std::make_unique<PostgresObjects>(url, options);
  TARN_RETURN_IF_ERROR(objects->open());
  return std::unique_ptr<Objects>(std::move(objects));
}

}  // namespace tarn::serve
