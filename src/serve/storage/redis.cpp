#include <hiredis/hiredis.h>
#include <signal.h>  // pthread_sigmask

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <thread>

#include "base/log.h"
#include "serve/storage/deadline.h"
#include "serve/storage/objects.h"
#include "serve/storage/pool.h"

namespace tarn::serve {
namespace {

// Writes that met others are run again; each time somebody else has got on.
constexpr int kMaxAttempts = 200;

// The braces keep all keys in one slot of a cluster, where transactions can reach them together.
constexpr const char* kPrefix = "{tarn}:";
constexpr const char* kIndex = "{tarn}:names";  // every name, all of one score: sorted by bytes

// Names and values of a page as one step, so that no name can lose its value in between.
constexpr const char* kScanScript =
    "local names = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3]) "
    "local rows = {} "
    "for i, name in ipairs(names) do "
    "rows[2 * i - 1] = name; rows[2 * i] = redis.call('GET', ARGV[4] .. name) or '' end "
    "return rows";

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;
using Words = std::vector<std::string>;

std::string key_of(const std::string& name) { return kPrefix + name; }
std::string text_of(const redisReply& reply) { return {reply.str, reply.len}; }

/// Keeps a write to a closed connection from ending the program: hiredis has no other means.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &old_);
  }
  BrokenPipeGuard(const BrokenPipeGuard&) = delete;
  BrokenPipeGuard& operator=(const BrokenPipeGuard&) = delete;
  ~BrokenPipeGuard() {
    const timespec now{};
    // Only the signal of our own write is taken away.
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }

 private:
  sigset_t pipe_, old_;
  bool was_pending_ = false;
};

struct Address {
  std::string host = "localhost", socket, user, password, database;
  int port = 6379;
};

/// redis://[user][:password@]host[:port][/database], or redis+unix:///path/to/socket.
Result<Address> parse_address(const std::string& url) {
  const Error malformed = invalid_argument(
      "wanted redis://host:port/database or redis+unix:///path/to/socket", "store");
  const size_t start = url.find("://");
  if (start == std::string::npos) return malformed;
  Address address;
  std::string rest = url.substr(start + 3);
  if (url.starts_with("redis+unix")) {
    if (rest.empty() || rest[0] != '/') return malformed;
    address.socket = rest;
    return address;
  }
  if (const size_t at = rest.rfind('@'); at != std::string::npos) {
    const std::string who = rest.substr(0, at);
    const size_t colon = who.find(':');
    address.user = who.substr(0, colon);
    if (colon != std::string::npos) address.password = who.substr(colon + 1);
    rest = rest.substr(at + 1);
  }
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    address.database = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
  }
  if (const size_t colon = rest.rfind(':'); colon != std::string::npos) {
    const std::string port = rest.substr(colon + 1);
    const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (code != std::errc() || end != port.data() + port.size() || address.port < 1 ||
        address.port > 65535) {
      return malformed;
    }
    rest = rest.substr(0, colon);
  }
  if (!rest.empty()) address.host = rest;
  return address;
}

/// One connection. Nothing waits longer than to the deadline; one that passed it is not alive, for
/// its answer may still come. Threads: one at a time.
class Connection {
 public:
  Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (context_ != nullptr) redisFree(context_);
  }

  Status open(const Address& address, const Deadline& deadline);
  /// The end of what comes next.
  void set_deadline(const Deadline& deadline) { deadline_ = deadline; }
  /// Sends all commands, then reads all replies: one way there and back. An error reply is an
  /// error, but the replies after it are read, too.
  Result<std::vector<Reply>> ask(const std::vector<Words>& commands);
  bool is_alive() const { return !late_ && context_ != nullptr && context_->err == 0; }

 private:
  /// Gives the next read or write of the socket what is left of the time; false: nothing is.
  bool in_time();
  Status send();
  Result<Reply> receive();
  Error broken() const {
    if (late_ || deadline_.passed()) return deadline_.error("Redis did not answer");
    const std::string why = context_ == nullptr ? "no memory" : context_->errstr;
    return {ErrorCode::kIo, "the connection to Redis failed: " + why, "store"};
  }
  redisContext* context_ = nullptr;
  Deadline deadline_;
  bool late_ = false;
};

Error refusal(const redisReply& reply) {
  const std::string message = text_of(reply);
  ErrorCode code = ErrorCode::kIo;
  if (message.starts_with("OOM")) code = ErrorCode::kResource;
  if (message.starts_with("READONLY") || message.starts_with("MISCONF"))
    code = ErrorCode::kReadOnly;
  if (message.starts_with("WRONGTYPE")) code = ErrorCode::kCorrupt;
  return {code, "Redis says: " + message, "store"};
}

timeval time_of(int64_t ms) { return {ms / 1000, ms % 1000 * 1000}; }

bool Connection::in_time() {
  const int64_t left = deadline_.left_ms();
  late_ = left == 0;
  return !late_ && redisSetTimeout(context_, time_of(left)) == REDIS_OK;
}

Status Connection::send() {
  for (int done = 0; done == 0;) {
    if (!in_time() || redisBufferWrite(context_, &done) != REDIS_OK) return broken();
  }
  return {};
}

Result<Reply> Connection::receive() {
  while (true) {
    void* raw = nullptr;
    if (redisGetReplyFromReader(context_, &raw) != REDIS_OK) return broken();
    if (raw != nullptr) return Reply(static_cast<redisReply*>(raw));
    if (!in_time() || redisBufferRead(context_) != REDIS_OK) return broken();
  }
}

Result<std::vector<Reply>> Connection::ask(const std::vector<Words>& commands) {
  const BrokenPipeGuard guard;
  for (const Words& words : commands) {
    std::vector<const char*> starts;
    std::vector<size_t> lengths;
    for (const std::string& word : words) {
      starts.push_back(word.data());
      lengths.push_back(word.size());
    }
    const int code = redisAppendCommandArgv(context_, static_cast<int>(words.size()), starts.data(),
                                            lengths.data());
    if (code != REDIS_OK) return broken();
  }
  if (!commands.empty()) TARN_RETURN_IF_ERROR(send());
  std::vector<Reply> replies;
  const redisReply* refused = nullptr;
  for (size_t i = 0; i < commands.size(); ++i) {
    TARN_ASSIGN(Reply reply, receive());
    replies.push_back(std::move(reply));
    if (refused == nullptr && replies.back()->type == REDIS_REPLY_ERROR) {
      refused = replies.back().get();
    }
  }
  if (refused != nullptr) return refusal(*refused);
  return replies;
}

Status Connection::open(const Address& address, const Deadline& deadline) {
  deadline_ = deadline;
  if (deadline_.passed()) return broken();
  const timeval patience = time_of(std::max<int64_t>(deadline_.left_ms(), 1));
  context_ = address.socket.empty()
                 ? redisConnectWithTimeout(address.host.c_str(), address.port, patience)
                 : redisConnectUnixWithTimeout(address.socket.c_str(), patience);
  if (!is_alive()) return broken();
  if (address.socket.empty()) redisEnableKeepAlive(context_);
  std::vector<Words> greeting;
  if (!address.password.empty()) {
    greeting.push_back(address.user.empty() ? Words{"AUTH", address.password}
                                            : Words{"AUTH", address.user, address.password});
  }
  if (!address.database.empty()) greeting.push_back({"SELECT", address.database});
  const auto replies = ask(greeting);
  if (!replies.ok()) return replies.error();
  return {};
}

/// One key per object and a sorted set of their names. A write watches the keys that it reads; when
/// one of them changed before its transaction, Redis drops the transaction and it runs again.
class RedisObjects final : public Objects {
 public:
  RedisObjects(Address address, const StoreOptions& options)
      : address_(std::move(address)), options_(options) {}

  Status open() {
    TARN_ASSIGN(std::unique_ptr<Connection> connection, take(Deadline(options_)));
    TARN_RETURN_IF_ERROR(connection->ask({{"PING"}}));
    read_settings(*connection);
    pool_.give(std::move(connection));
    return {};
  }

  Result<MaybeValue> get(const std::string& name) override {
    TARN_ASSIGN(const std::vector<Reply> replies, read({"GET", key_of(name)}));
    return value_of(*replies[0]);
  }

  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    TARN_ASSIGN(const std::vector<Reply> replies,
                read({"EVAL", kScanScript, "1", kIndex, "(" + after, "(" + name_after(prefix),
                      std::to_string(limit), kPrefix}));
    std::vector<NamedValue> rows;
    for (size_t i = 0; i + 1 < replies[0]->elements; i += 2) {
      rows.emplace_back(text_of(*replies[0]->element[i]), text_of(*replies[0]->element[i + 1]));
    }
    return rows;
  }

  Status update(const Planner& planner) override {
    const Deadline deadline(options_);
    for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
      TARN_ASSIGN(std::unique_ptr<Connection> connection, take(deadline));
      read_settings(*connection);
      const Result<Outcome> outcome = transact(*connection, planner);
      pool_.give(std::move(connection));
      if (!outcome.ok()) return outcome.error();
      if (*outcome == Outcome::kDone) return {};
      std::this_thread::sleep_for(std::chrono::microseconds(100 * std::min(attempt + 1, 50)));
    }
    return Error{ErrorCode::kConflict, "others were faster in every attempt to write", "store"};
  }

  Durability durability() const override { return durability_; }

 private:
  enum class Outcome { kDone, kAgain };

  class Reader final : public PlanReader {
   public:
    explicit Reader(Connection& connection) : connection_(&connection) {}
    Result<MaybeValue> get(const std::string& name) override {
      const std::string key = key_of(name);
      auto replies = connection_->ask({{"WATCH", key}, {"GET", key}});
      if (!replies.ok()) return replies.error();
      return value_of(*(*replies)[1]);
    }
    Result<std::vector<std::string>> names(const std::string& prefix) override {
      auto replies = connection_->ask(
          {{"WATCH", kIndex}, {"ZRANGEBYLEX", kIndex, "[" + prefix, "(" + name_after(prefix)}});
      if (!replies.ok()) return replies.error();
      const redisReply& list = *(*replies)[1];
      std::vector<std::string> names;
      for (size_t i = 0; i < list.elements; ++i) names.push_back(text_of(*list.element[i]));
      return names;
    }

   private:
    Connection* connection_;
  };

  Result<std::unique_ptr<Connection>> take(const Deadline& deadline) {
    TARN_ASSIGN(std::unique_ptr<Connection> connection, pool_.take(address_, deadline));
    connection->set_deadline(deadline);
    return connection;
  }

  static MaybeValue value_of(const redisReply& reply) {
    return reply.type == REDIS_REPLY_STRING ? MaybeValue(text_of(reply)) : MaybeValue();
  }

  static void add(const Change& change, std::vector<Words>* commands) {
    if (change.value) {
      commands->push_back({"SET", key_of(change.name), *change.value});
      commands->push_back({"ZADD", kIndex, "0", change.name});
    } else {
      commands->push_back({"DEL", key_of(change.name)});
      commands->push_back({"ZREM", kIndex, change.name});
    }
  }

  static Result<Outcome> transact(Connection& connection, const Planner& planner) {
    Reader reader(connection);
    const Result<Plan> plan = planner(reader);
    if (!connection.is_alive()) return Outcome::kAgain;  // nothing was written yet
    if (!plan.ok() || plan->empty()) {
      TARN_RETURN_IF_ERROR(connection.ask({{"UNWATCH"}}));
      return plan.ok() ? Result<Outcome>(Outcome::kDone) : Result<Outcome>(plan.error());
    }
    std::vector<Words> commands = {{"MULTI"}};
    for (const Change& change : plan->before) add(change, &commands);
    if (plan->commit) add(*plan->commit, &commands);
    for (const Change& change : plan->after) add(change, &commands);
    commands.push_back({"EXEC"});
    TARN_ASSIGN(const std::vector<Reply> replies, connection.ask(commands));
    const redisReply& done = *replies.back();
    if (done.type == REDIS_REPLY_NIL) return Outcome::kAgain;
    for (size_t i = 0; i < done.elements; ++i) {
      if (done.element[i]->type == REDIS_REPLY_ERROR) return refusal(*done.element[i]);
    }
    return Outcome::kDone;
  }

  /// What a save will survive: with every write, as the settings may change while the server runs.
  void read_settings(Connection& connection) {
    std::array<std::string, 4> values;  // empty where the server does not tell
    const auto replies = connection.ask({{"CONFIG", "GET", "appendonly"},
                                         {"CONFIG", "GET", "appendfsync"},
                                         {"CONFIG", "GET", "maxmemory"},
                                         {"CONFIG", "GET", "maxmemory-policy"},
                                         {"INFO", "persistence"}});
    if (!connection.is_alive()) return;
    for (size_t i = 0; replies.ok() && i < values.size(); ++i) {
      const redisReply& reply = *(*replies)[i];
      if (reply.elements == 2) values[i] = text_of(*reply.element[1]);
    }
    const auto& [file, flush, limit, policy] = values;
    const bool drops = limit != "0" && policy != "noeviction";
    // The file may be the first one, which holds nothing before it is whole.
    const std::string info = replies.ok() ? text_of(*replies->back()) : std::string();
    const bool is_whole = info.find("aof_rewrite_in_progress:0") != std::string::npos &&
                          info.find("aof_rewrite_scheduled:0") != std::string::npos;
    Durability durability = Durability::kMemory;
    if (file == "yes" && is_whole && !drops) {
      durability = flush == "always" ? Durability::kPower : Durability::kProcess;
    }
    durability_ = durability;
    if (!drops_.exchange(drops) && drops) {
      log_message(LogLevel::kWarning,
                  "Redis may drop sessions when its memory is full: maxmemory-policy is \"" +
                      policy + "\", wanted noeviction");
    }
  }

  /// Asks once more when the connection broke: reading twice does no harm.
  Result<std::vector<Reply>> read(const Words& command) {
    const Deadline deadline(options_);
    for (int attempt = 0;; ++attempt) {
      TARN_ASSIGN(std::unique_ptr<Connection> connection, take(deadline));
      auto replies = connection->ask({command});
      const bool lost = !connection->is_alive();
      pool_.give(std::move(connection));
      if (replies.ok() || !lost || attempt > 0) return replies;
    }
  }

  Address address_;
  StoreOptions options_;
  std::atomic<Durability> durability_{Durability::kMemory};
  std::atomic<bool> drops_{false};
  Pool<Connection> pool_;
};

}  // namespace

Result<std::unique_ptr<Objects>> open_redis_objects(const std::string& url,
                                                    const StoreOptions& options) {
  TARN_ASSIGN(Address address, parse_address(url));
  auto objects = std::make_unique<RedisObjects>(std::move(address), options);
  TARN_RETURN_IF_ERROR(objects->open());
  return std::unique_ptr<Objects>(std::move(objects));
}

}  // namespace tarn::serve
