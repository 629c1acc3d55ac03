#include "unit/serve/servers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>  // kill
#include <stdlib.h>  // mkdtemp
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

namespace tarn::serve {
namespace {

namespace fs = std::filesystem;

/// The program in one of the folders, or "".
std::string find_program(const std::string& name, std::vector<std::string> folders) {
  const char* path = getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  for (size_t colon = 0; colon != std::string::npos;) {
    colon = rest.find(':');
    folders.push_back(rest.substr(0, colon));
    if (colon != std::string::npos) rest = rest.substr(colon + 1);
  }
  for (const std::string& folder : folders) {
    const std::string program = folder + "/" + name;
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return {};
}

std::vector<std::string> postgres_folders() {
  std::vector<std::string> folders;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator("/usr/lib/postgresql", code)) {
    folders.push_back((entry.path() / "bin").string());
  }
  std::sort(folders.rbegin(), folders.rend());
  return folders;
}

/// A server program in a scratch folder.
class Server {
 public:
  /// `end_signal` ends it without a chance to write anything more.
  explicit Server(int end_signal) : end_signal_(end_signal) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    if (owner_ != getpid()) return;  // a fork of the test program
    stop();
    std::error_code code;
    if (!folder_.empty()) fs::remove_all(folder_, code);
  }

  /// A folder for the server; PostgreSQL will not run as root, so then it gets another user's.
  void make_folder(const char* user_if_root) {
    std::string pattern = (fs::temp_directory_path() / "tarn-server-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) abort();
    folder_ = pattern;
    owner_ = getpid();
    if (user_if_root == nullptr || getuid() != 0) return;
    const passwd* entry = getpwnam(user_if_root);
    if (entry == nullptr) entry = getpwnam("nobody");
    if (entry == nullptr) return;
    user_ = entry->pw_uid;
    group_ = entry->pw_gid;
    if (chown(folder_.c_str(), user_, group_) != 0) abort();
  }

  /// Runs a program to its end; its exit status.
  int run(const std::vector<std::string>& words) const {
    int status = 0;
    waitpid(spawn(words), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  /// Starts the server itself and waits until `is_up`; whether it came up.
  bool start(const std::vector<std::string>& words, const std::function<bool()>& is_up) {
    process_ = spawn(words);
    for (int i = 0; i < 600; ++i) {
      if (is_up()) return true;
      if (waitpid(process_, nullptr, WNOHANG) == process_) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  void stop() {
    if (process_ <= 0) return;
    kill(process_, end_signal_);
    waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  /// Stops the server and its children, or lets them go on.
  void freeze(bool frozen) const {
    const int signal = frozen ? SIGSTOP : SIGCONT;
    kill(process_, signal);  // first: then it has no more children
    const std::string id = std::to_string(process_);
    std::ifstream children("/proc/" + id + "/task/" + id + "/children");
    for (pid_t child = 0; children >> child;) kill(child, signal);
  }
  const std::string& folder() const { return folder_; }
  std::string log() const { return folder_ + "/log"; }

 private:
  pid_t spawn(const std::vector<std::string>& words) const {
    // Everything is made before the fork: other threads may hold the allocator's locks then.
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string log_path = log();
    const pid_t child = fork();
    if (child != 0) return child;
    if (user_ != 0 && (setgid(group_) != 0 || setuid(user_) != 0)) _exit(126);
    prctl(PR_SET_PDEATHSIG, end_signal_);  // never outlives the test program
    const int log_file = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(log_file, STDOUT_FILENO);
    dup2(log_file, STDERR_FILENO);
    if (chdir(folder_.c_str()) != 0) _exit(126);
    execv(arguments[0], arguments.data());
    _exit(127);
  }

  int end_signal_;
  std::string folder_;
  pid_t owner_ = -1, process_ = -1;
  uid_t user_ = 0;
  gid_t group_ = 0;
};

class Postgres {
 public:
  Postgres() {
    const std::string initdb = find_program("initdb", postgres_folders());
    program_ = find_program("postgres", postgres_folders());
    if (initdb.empty() || program_.empty()) {
      why_not_ = "the programs initdb and postgres are not installed (apt: postgresql)";
      return;
    }
    server_.make_folder("postgres");
    if (server_.run({initdb, "-D", data(), "-U", "tarn", "-A", "trust", "-N", "--locale=C"}) != 0) {
      why_not_ = "initdb failed, see " + server_.log();
      return;
    }
    start();
  }

  void start() {
    const bool up = server_.start(
        {program_, "-D", data(), "-k", server_.folder(), "-c", "listen_addresses=", "-c",
         "max_connections=50", "-c", "recovery_init_sync_method=syncfs"},
        [this] { return PQping(url().c_str()) == PQPING_OK; });
    if (!up) why_not_ = "postgres does not start, see " + server_.log();
  }
  void restart() {
    server_.stop();
    start();
  }
  void freeze(bool frozen) const { server_.freeze(frozen); }

  std::string url() const { return "postgresql:///postgres?user=tarn&host=" + server_.folder(); }
  const std::string& why_not() const { return why_not_; }

 private:
  std::string data() const { return server_.folder() + "/data"; }
  Server server_{SIGQUIT};  // what `pg_ctl stop -m immediate` sends
  std::string program_, why_not_;
};

/// A schema of its own.
class PostgresPlace final : public Place {
 public:
  explicit PostgresPlace(Postgres& server) : server_(&server) {
    static int count = 0;
    schema_ = "place" + std::to_string(++count);
    PGconn* connection = PQconnectdb(server_->url().c_str());
    PQclear(PQexec(connection, ("CREATE SCHEMA " + schema_).c_str()));
    PQfinish(connection);
  }
  Result<std::unique_ptr<Objects>> objects(const StoreOptions& options) override {
    const std::string wait = options.sync ? "" : "%20-csynchronous_commit%3Doff";
    return open_objects(server_->url() + "&options=-csearch_path%3D" + schema_ + wait, options);
  }
  bool restart() override {
    server_->restart();
    return true;
  }
  bool freeze(bool frozen) override {
    server_->freeze(frozen);
    return true;
  }

 private:
  Postgres* server_;
  std::string schema_;
};

class Redis {
 public:
  Redis() {
    program_ = find_program("redis-server", {"/usr/bin"});
    if (program_.empty()) {
      why_not_ = "the program redis-server is not installed (apt: redis-server)";
      return;
    }
    server_.make_folder(nullptr);
    start();
  }

  void start() {
    const bool up = server_.start(
        {program_, "--port", "0", "--unixsocket", socket(), "--dir", server_.folder(), "--save", "",
         "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"},
        [this] { return command({"PING"}); });
    if (!up) why_not_ = "redis-server does not start, see " + server_.log();
  }
  void restart() {
    server_.stop();
    start();
  }
  void freeze(bool frozen) const { server_.freeze(frozen); }

  /// Whether the server answers with anything but an error.
  bool command(const std::vector<std::string>& words) const {
    redisContext* context = redisConnectUnix(socket().c_str());
    bool ok = context != nullptr && context->err == 0;
    if (ok) {
      std::vector<const char*> starts;
      for (const std::string& word : words) starts.push_back(word.c_str());
      auto* reply = static_cast<redisReply*>(
          redisCommandArgv(context, static_cast<int>(starts.size()), starts.data(), nullptr));
      ok = reply != nullptr && reply->type != REDIS_REPLY_ERROR;
      if (reply != nullptr) freeReplyObject(reply);
    }
    if (context != nullptr) redisFree(context);
    return ok;
  }
  std::string socket() const { return server_.folder() + "/socket"; }
  const std::string& why_not() const { return why_not_; }

 private:
  Server server_{SIGKILL};
  std::string program_, why_not_;
};

/// The whole server, emptied.
class RedisPlace final : public Place {
 public:
  explicit RedisPlace(Redis& server) : server_(&server) {
    EXPECT_TRUE(server_->command({"FLUSHALL"}));
  }
  Result<std::unique_ptr<Objects>> objects(const StoreOptions& options) override {
    EXPECT_TRUE(
        server_->command({"CONFIG", "SET", "appendfsync", options.sync ? "always" : "everysec"}));
    return open_objects("redis+unix://" + server_->socket(), options);
  }
  bool restart() override {
    server_->restart();
    return true;
  }
  bool freeze(bool frozen) override {
    server_->freeze(frozen);
    return true;
  }

 private:
  Redis* server_;
};

/// A place on the one server of this program.
template <class OneServer, class OnePlace>
std::unique_ptr<Place> make_on(std::string* why_not) {
  static OneServer server;
  *why_not = server.why_not();
  if (!why_not->empty()) return nullptr;
  return std::make_unique<OnePlace>(server);
}

}  // namespace

std::unique_ptr<Place> make_postgres(std::string* why_not) {
  return make_on<Postgres, PostgresPlace>(why_not);
}
std::unique_ptr<Place> make_redis(std::string* why_not) {
  return make_on<Redis, RedisPlace>(why_not);
}

}  // namespace tarn::serve
