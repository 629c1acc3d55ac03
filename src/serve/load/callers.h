#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/load/client.h"
#include "serve/load/completion_check.h"
#include "serve/load/event_reader.h"
#include "serve/load/run.h"

namespace tarn::serve::load {

/// Asks one question at a time, measures and judges the answer. Threads: its loop's.
class Caller : public Link::User {
 public:
  Caller(Run& run, ClientLoop& loop, Samples& samples, int64_t index);

  void bytes(int status, std::string_view body) override;
  void ended(const Ending& ending) override;

 protected:
  enum class Verdict { kRight, kRefused, kUnknown };  ///< unknown: what the server did with it

  void ask(Question question);
  virtual void answered(Verdict verdict) = 0;
  /// After an answer: a refusal is counted; another status than `wanted`, or a problem, is wrong.
  Verdict judge(const Ending& ending, int wanted, std::string problem);

  Run& run_;
  ClientLoop& loop_;
  Samples& samples_;
  Link& link_;
  const int64_t index_;
  std::string body_;  ///< of a refusal

 private:
  void piece();

  Question question_;
  std::optional<CompletionCheck> check_;
  EventReader events_;
  double begun_ = 0, last_ = 0;  // last_: when the last piece came; 0: none yet
  bool with_prompts_ = false;    // one was read when the last piece came
};

/// One active stream: asks until the run stops, in a session of its own where the run has sessions.
class Player final : public Caller {
 public:
  using Caller::Caller;
  void start() { next(); }

  void bytes(int status, std::string_view body) override;
  void ended(const Ending& ending) override;

 private:
  void next();
  void ask_turn();
  void make_session();
  void session_made(const Ending& ending);
  void answered(Verdict verdict) override;
  void wait();

  bool making_ = false;
  std::string session_;
  int64_t made_ = 0;  // sessions
  int64_t seq_ = 0, turn_ = 0;
};

/// Prompts that arrive at a fixed rate, whatever becomes of those before.
class Arrivals {
 public:
  Arrivals(Run& run, ClientLoop& loop, Samples& samples);
  ~Arrivals();

  /// At most this many are in flight; more that arrive are counted and left out.
  static constexpr int64_t kMost = 64;
  void start();

 private:
  class Reader;
  void arrive();

  Run& run_;
  ClientLoop& loop_;
  Samples& samples_;
  double due_ = 0;
  std::vector<std::unique_ptr<Reader>> readers_;
};

/// Connections that do nothing but stay open: each asks for /livez now and then, before the server
/// ends it.
class IdleGroup {
 public:
  IdleGroup(Run& run, ClientLoop& loop, Samples& samples, int64_t count);
  ~IdleGroup();

  void start();
  int64_t opened() const { return opened_; }
  /// Those that were tried; the group is ready when this is the count. Threads: any, as opened().
  int64_t tried() const { return tried_; }
  /// Why one could not be opened. Threads: any, after tried() is the count.
  const std::string& failure() const { return failure_; }

 private:
  class Idle;
  void open_next();
  void tried_one(const Ending& ending);

  Run& run_;
  ClientLoop& loop_;
  Samples& samples_;
  const int64_t count_;
  int64_t begun_ = 0;
  std::atomic<int64_t> opened_{0}, tried_{0};
  std::string failure_;
  std::vector<std::unique_ptr<Idle>> idles_;
};

}  // namespace tarn::serve::load
