#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/load/target.h"

namespace tarn::serve::load {

/// How a request ended. Without a failure the answer came whole.
struct Ending {
  enum class Failure { kNone, kConnection, kBroken, kTimeout };
  Failure failure = Failure::kNone;  ///< kBroken: after the answer had begun
  int status = 0;                    ///< 0: no answer's head came
  std::string message{};             ///< of a failure
};

/// One connection to the server, opened when it is first needed and kept while the server keeps it.
/// One request at a time. A request on a connection that the server had closed meanwhile is sent
/// once more on a new one. Threads: its loop's alone.
class Link {
 public:
  class User {
   public:
    virtual ~User() = default;
    virtual void bytes(int status, std::string_view body) = 0;  ///< some of the answer's body
    virtual void ended(const Ending& ending) = 0;               ///< may ask for the next request
    virtual void lost() {}  ///< the server closed it between requests
  };

  virtual ~Link() = default;
  virtual void request(std::string bytes) = 0;
};

/// A thread with any number of connections to one server. Owner of Boost.Asio.
class ClientLoop {
 public:
  /// Looks up the host's name. `timeout_seconds` bounds every request. Errors: no such host.
  static Result<std::unique_ptr<ClientLoop>> start(const Target& target, double timeout_seconds);
  /// Cuts every connection and ends the thread; users hear nothing of it.
  ~ClientLoop();
  ClientLoop(const ClientLoop&) = delete;
  ClientLoop& operator=(const ClientLoop&) = delete;

  /// Runs `function` on the loop's thread. Threads: any.
  void post(std::function<void()> function);
  /// The same after a while. Threads: the loop's.
  void after(double seconds, std::function<void()> function);
  /// A link that lives as long as the loop. `user` must too. Threads: the loop's.
  Link& open(Link::User& user);

 private:
  struct Impl;
  explicit ClientLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct FetchedAnswer {
  int status = 0;
  std::string body;
};
/// One request on a connection of its own; waits for the whole answer. Errors: no connection, a
/// broken answer, `timeout_seconds` (kIo).
Result<FetchedAnswer> fetch(const Target& target, std::string request, double timeout_seconds);

}  // namespace tarn::serve::load
