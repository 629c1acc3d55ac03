#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "model/model.h"
#include "runtime/session.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/session_table.h"
#include "serve/turn_queue.h"

namespace tarn::serve {

struct EngineOptions {
  int threads = 1;                        ///< that compute, the engine's own included
  int64_t max_running = 256;              ///< turns in one round
  int64_t prompt_budget = 32;             ///< prompt tokens read in one round, see Engine
  int64_t max_queued_requests = 1024;     ///< that wait for a place in the rounds
  int64_t max_queued_tokens = 1'000'000;  ///< of their prompts together
  int64_t memory_limit_bytes = 0;         ///< of states, see SessionTable; 0: none
  SessionHooks hooks{};                   ///< default: hooks_in_memory()
};

/// Advances the turns of many sessions of one model together, one token of each per round; turns join
/// and leave between rounds. Each round also reads pieces of waiting prompts. While other turns
/// draw, pieces are small (Generator::piece_quantum()) and have at most prompt_budget tokens together,
/// saved up over rounds when a piece is larger, so that a long prompt delays the others' next token
/// by little. Fairness keys take turns, and the turns within a key.
///
/// What a turn draws depends on its session, prompt, sampler and seed alone: the same bits as with a
/// Session and a Generator of its own, whatever else runs. An error ends the turn that had it.
/// Threads: any caller; one thread of the engine's own computes.
class Engine {
 public:
  /// Errors: a model that cannot work token by token (kUnsupported), options out of range.
  static Result<std::unique_ptr<Engine>> create(std::shared_ptr<const model::Model> model,
                                                EngineOptions options);
  /// Cancels what runs and waits for it.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Admits a turn or says why not. May wait for the session to come back from the store; never for
  /// the model. A turn has its session from here to its end.
  Submission submit(Request request);

  struct Drained {
    int64_t cancelled = 0;  ///< turns that were still running or waiting at the deadline
  };
  /// Takes no more turns, waits for those admitted, and cancels what is left at the deadline. Returns
  /// when nothing runs; sessions can still be used.
  Drained drain(Clock::time_point deadline);
  bool draining() const { return draining_.load(std::memory_order_relaxed); }

  SessionTable& sessions() { return sessions_; }
  const Metrics& metrics() const { return metrics_; }
  const std::shared_ptr<const model::Model>& model() const { return model_; }
  const EngineOptions& options() const { return options_; }

 private:
  using TurnPointer = std::shared_ptr<Turn>;
  Engine(std::shared_ptr<const model::Model> model, EngineOptions options);

  Status validate(const Request& request) const;
  std::optional<Refusal> check_room(const Request& request) const;
  double retry_after() const;

  void run();
  bool wait_for_work();
  void admit();
  TurnPointer next_waiting();
  void end_interrupted();
  void choose_batch();
  void choose_pieces(std::vector<Turn*> readers);
  void finish_round();
  void end(const TurnPointer& turn, FinishReason reason, const Error& error = {});

  const std::shared_ptr<const model::Model> model_;
  const EngineOptions options_;
  SessionTable sessions_;
  Metrics metrics_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> cancel_all_{false};

  const std::shared_ptr<Wake> wake_;  // its mutex guards:
  TurnQueue waiting_;
  int64_t live_ = 0;  //   turns that have not ended
  double mean_turn_seconds_ = 0;
  bool stopping_ = false;
  std::condition_variable all_ended_;

  // Of the engine's thread.
  ThreadPool pool_;
  runtime::Generator generator_;
  std::vector<TurnPointer> running_;
  std::vector<TurnPointer> drawing_;
  std::vector<runtime::Session> spares_;  // memory for the copies of running turns
  std::vector<runtime::Session*> batch_;
  FairClock clock_;
  int64_t credit_ = 0;                                       // prompt tokens that may be read
  int64_t piece_tokens_ = runtime::Generator::kPieceTokens;  // of one prompt in this round
  std::thread thread_;
};

}  // namespace tarn::serve
