#include "serve/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/state.h"
#include "serve/stop_strings.h"
#include "serve/turn.h"

namespace tarn::serve {

using runtime::Generator;
using runtime::Session;

namespace {

/// Below this many choices in all, drawing costs less than waking the threads.
constexpr int64_t kSerialChoices = 1 << 14;
/// How soon a session that a call gave back is noticed when nothing else happens.
constexpr std::chrono::milliseconds kSessionPoll{2};

Status check_options(const EngineOptions& options) {
  const auto positive = [](const char* name, int64_t value) -> Status {
    if (value > 0) return {};
    return invalid_argument("is " + std::to_string(value) + ", must be at least 1", name);
  };
  TARN_RETURN_IF_ERROR(positive("threads", options.threads));
  TARN_RETURN_IF_ERROR(positive("max_running", options.max_running));
  TARN_RETURN_IF_ERROR(positive("prompt_budget", options.prompt_budget));
  TARN_RETURN_IF_ERROR(positive("max_queued_requests", options.max_queued_requests));
  TARN_RETURN_IF_ERROR(positive("max_queued_tokens", options.max_queued_tokens));
  if (options.memory_limit_bytes < 0) {
    return invalid_argument("is negative, must be 0 (no limit) or more", "memory_limit_bytes");
  }
  const bool any = options.hooks.evict || options.hooks.fetch || options.hooks.forget;
  const bool all = options.hooks.evict && options.hooks.fetch && options.hooks.forget;
  if (any == all) return {};
  return invalid_argument("some are missing, all or none must be given", "hooks");
}

EngineOptions with_hooks(EngineOptions options) {
  if (!options.hooks.fetch) options.hooks = hooks_in_memory();
  return options;
}

RefusalReason reason_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return RefusalReason::kInvalid;
    case ErrorCode::kNotFound: return RefusalReason::kNotFound;
    case ErrorCode::kConflict: return RefusalReason::kConflict;
    case ErrorCode::kResource: return RefusalReason::kFull;
    default: return RefusalReason::kFailed;
  }
}

/// What of a request depends on its session. `session` may have other turns before this one.
std::optional<Refusal> check_session(const Request& request, const Session& session) {
  if (request.if_tokens && session.token_count() != *request.if_tokens) {
    return Refusal{RefusalReason::kPrecondition,
                   {ErrorCode::kConflict,
                    "has " + std::to_string(session.token_count()) + " tokens, wanted " +
                        std::to_string(*request.if_tokens),
                    "session " + request.session}};
  }
  const int64_t limit = session.model().config().max_tokens;
  const int64_t tokens = session.token_count() + static_cast<int64_t>(request.prompt.size());
  if (limit == 0 || tokens <= limit) return std::nullopt;
  return Refusal{RefusalReason::kInvalid,
                 invalid_argument("the sequence would have " + std::to_string(tokens) +
                                      " tokens, the model takes at most " + std::to_string(limit),
                                  "prompt")};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(std::shared_ptr<const model::Model> model,
                                               EngineOptions options) {
  TARN_RETURN_IF_ERROR(runtime::check_causal(*model));
  TARN_RETURN_IF_ERROR(check_options(options));
  return std::unique_ptr<Engine>(new Engine(std::move(model), with_hooks(std::move(options))));
}

Engine::Engine(std::shared_ptr<const model::Model> model, EngineOptions options)
    : model_(std::move(model)),
      options_(std::move(options)),
      sessions_(model_, options_.hooks, options_.memory_limit_bytes),
      wake_(std::make_shared<Wake>()),
      pool_(options_.threads),
      generator_(model_, &pool_) {
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  draining_ = true;
  cancel_all_ = true;
  {
    const std::lock_guard lock(wake_->mutex);
    stopping_ = true;
    wake_->changed.notify_all();
  }
  thread_.join();
}

Status Engine::validate(const Request& request) const {
  const model::ModelConfig& config = model_->config();
  TARN_RETURN_IF_ERROR(runtime::validate(request.sampler));
  TARN_RETURN_IF_ERROR(validate_stop_strings(request.stop));
  if (!request.stop.empty() && config.modality != model::Modality::kBytes) {
    return invalid_argument("stop strings need a model over bytes of text", "stop");
  }
  if (request.log_probs && (*request.log_probs < 0 || *request.log_probs > kMaxLogProbs)) {
    return invalid_argument("is " + std::to_string(*request.log_probs) + ", must be from 0 to " +
                                std::to_string(kMaxLogProbs),
                            "log_probs");
  }
  if (request.max_tokens < 0) {
    return invalid_argument("is " + std::to_string(request.max_tokens) + ", must be 0 or more",
                            "max_tokens");
  }
  const auto size = static_cast<int64_t>(request.prompt.size());
  const int64_t limit = config.max_tokens > 0
                            ? std::min(config.max_tokens, options_.max_queued_tokens)
                            : options_.max_queued_tokens;
  if (size > limit) {
    return invalid_argument(
        "has " + std::to_string(size) + " tokens, at most " + std::to_string(limit) + " are taken",
        "prompt");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < config.vocabulary) continue;
    return invalid_argument("token " + std::to_string(i) + " is " +
                                std::to_string(request.prompt[i]) + ", must be in [0, " +
                                std::to_string(config.vocabulary) + ")",
                            "prompt");
  }
  return {};
}

/// Seconds until the queue has moved up by its present length; the lock is held.
double Engine::retry_after() const {
  const auto turns = static_cast<double>(waiting_.size() + 1);
  const double seconds = turns * mean_turn_seconds_ / static_cast<double>(options_.max_running);
  return std::clamp(std::ceil(seconds), 1.0, 120.0);
}

/// Whether the queue takes the request now; the lock is held.
std::optional<Refusal> Engine::check_room(const Request& request) const {
  if (draining()) {
    return Refusal{RefusalReason::kDraining,
                   {ErrorCode::kCancelled, "the engine is shutting down and takes no more", {}}};
  }
  const auto size = static_cast<int64_t>(request.prompt.size());
  if (waiting_.size() < options_.max_queued_requests &&
      waiting_.prompt_tokens() + size <= options_.max_queued_tokens) {
    return std::nullopt;
  }
  return Refusal{RefusalReason::kFull,
                 {ErrorCode::kResource,
                  "the queue is full: " + std::to_string(waiting_.size()) + " requests with " +
                      std::to_string(waiting_.prompt_tokens()) + " prompt tokens wait",
                  {}},
                 retry_after()};
}

Submission Engine::refuse(Refusal refusal) {
  metrics_.refused.fetch_add(1, std::memory_order_relaxed);
  return {{}, std::move(refusal)};
}

std::optional<Refusal> Engine::refusal(const Request& request) {
  const Status valid = validate(request);
  if (!valid.ok()) return Refusal{RefusalReason::kInvalid, valid.error()};
  const std::lock_guard lock(wake_->mutex);
  return check_room(request);
}

Submission Engine::submit(Request request) {
  const Clock::time_point submitted = Clock::now();
  // Before the session is brought back: a full queue must cost nothing.
  if (auto early = refusal(request)) return refuse(std::move(*early));
  SessionTable::Lease lease;
  if (!request.session.empty()) {
    auto claimed = sessions_.claim(request.session, request.wait_for_session);
    if (!claimed.ok()) {
      const RefusalReason reason = reason_of(claimed.error().code);
      return refuse({reason, claimed.error(), reason == RefusalReason::kFull ? 1.0 : 0.0});
    }
    lease = std::move(*claimed);
  }
  return enter(std::move(request), lease, {}, submitted);
}

Submission Engine::submit(Request request, SessionTable::Lease& lease, GiveBack give_back) {
  if (auto early = refusal(request)) return refuse(std::move(*early));
  return enter(std::move(request), lease, std::move(give_back), Clock::now());
}

/// Puts a valid request in the queue.
Submission Engine::enter(Request request, SessionTable::Lease& lease, GiveBack give_back,
                         Clock::time_point submitted) {
  if (lease.held()) {
    if (auto refusal = check_session(request, lease.session())) return refuse(std::move(*refusal));
  }
  const std::lock_guard lock(wake_->mutex);
  if (auto full = check_room(request)) return refuse(std::move(*full));
  auto turn = std::make_shared<Turn>(std::move(request), std::move(lease), std::move(give_back),
                                     wake_, submitted);
  waiting_.push(turn);
  ++live_;
  metrics_.requests.fetch_add(1, std::memory_order_relaxed);
  metrics_.waiting.fetch_add(1, std::memory_order_relaxed);
  wake_->changed.notify_all();
  return {Handle(turn->control()), std::nullopt};
}

Engine::Drained Engine::drain(Clock::time_point deadline) {
  std::unique_lock lock(wake_->mutex);
  draining_ = true;
  Drained drained;
  if (!all_ended_.wait_until(lock, deadline, [this] { return live_ == 0; })) {
    drained.cancelled = live_;
    cancel_all_ = true;
    wake_->changed.notify_all();
    all_ended_.wait(lock, [this] { return live_ == 0; });
  }
  return drained;
}

void Engine::run() {
  flush_denormals();
  while (wait_for_work()) {
    admit();
    end_interrupted();
    choose_batch();
    // Memory was reserved turn by turn: what is left to fail is a bug.
    if (!batch_.empty()) TARN_CHECK(generator_.advance(batch_, piece_tokens_).ok());
    finish_round();
    metrics_.rounds.fetch_add(1, std::memory_order_relaxed);
  }
}

bool Engine::wait_for_work() {
  std::unique_lock lock(wake_->mutex);
  if (!running_.empty()) return true;
  wake_->changed.wait(lock, [this] { return stopping_ || waiting_.size() > 0; });
  return waiting_.size() > 0;
}

/// The next turn that can start, out of the queue.
Engine::TurnPointer Engine::next_waiting() {
  using Answer = TurnQueue::Answer;
  if (static_cast<int64_t>(running_.size()) >= options_.max_running) return nullptr;
  std::unique_lock lock(wake_->mutex);
  const TurnPointer turn = waiting_.take(clock_, [this](Turn& candidate) {
    if (!candidate.try_hold()) return Answer::kSkip;
    // Memory comes back when others end; begin() refuses what would not even fit alone.
    const bool fits = candidate.take_memory(*model_, sessions_).ok();
    return fits || running_.empty() ? Answer::kTake : Answer::kStop;
  });
  if (turn) metrics_.waiting.fetch_sub(1, std::memory_order_relaxed);
  if (!turn && running_.empty() && waiting_.size() > 0) wake_->changed.wait_for(lock, kSessionPoll);
  return turn;
}

void Engine::admit() {
  const Clock::time_point now = Clock::now();
  std::vector<TurnPointer> interrupted;
  {
    const std::lock_guard lock(wake_->mutex);
    waiting_.take_all(
        [&](const Turn& turn) { return cancel_all_ || turn.interrupted(now).has_value(); },
        &interrupted);
  }
  for (const TurnPointer& turn : interrupted) {
    metrics_.waiting.fetch_sub(1, std::memory_order_relaxed);
    end(turn, turn->interrupted(now).value_or(FinishReason::kCancelled));
  }
  while (const TurnPointer turn = next_waiting()) {
    clock_.serve(turn->request().fairness_key);
    const Status begun = turn->begin(model_, sessions_, &spares_, metrics_);
    if (!begun.ok()) {
      end(turn, FinishReason::kError, begun.error());
      continue;
    }
    turn->running = true;
    running_.push_back(turn);
    metrics_.running.fetch_add(1, std::memory_order_relaxed);
  }
}

void Engine::end_interrupted() {
  const Clock::time_point now = Clock::now();
  std::erase_if(running_, [&](const TurnPointer& turn) {
    auto reason = turn->interrupted(now);
    if (!reason && cancel_all_) reason = FinishReason::kCancelled;
    if (reason) end(turn, *reason);
    return reason.has_value();
  });
}

/// Every session with one waiting input, and pieces of prompts within the credit.
void Engine::choose_batch() {
  batch_.clear();
  std::erase_if(running_, [&](const TurnPointer& turn) {
    const Status status = turn->reserve(sessions_);
    if (!status.ok()) end(turn, FinishReason::kError, status.error());
    return !status.ok();
  });
  std::vector<Turn*> readers;
  for (const TurnPointer& turn : running_) {
    if (turn->is_reading()) {
      readers.push_back(turn.get());
    } else {
      batch_.push_back(&turn->session());
    }
  }
  if (readers.empty()) {
    credit_ = 0;
    return;
  }
  choose_pieces(std::move(readers));
}

void Engine::choose_pieces(std::vector<Turn*> readers) {
  // With nobody waiting for a token, prompts are read in the pieces that are fastest.
  const bool alone = batch_.empty();
  const int64_t quantum = generator_.piece_quantum();
  const int64_t budget =
      alone ? std::max(options_.prompt_budget, Generator::kPieceTokens) : options_.prompt_budget;
  credit_ =
      std::min(credit_ + budget, std::max(budget, (alone ? Generator::kPieceTokens : quantum) + 1));
  const auto count = static_cast<int64_t>(readers.size());
  piece_tokens_ =
      alone ? Generator::kPieceTokens
            : std::clamp(credit_ / count / quantum * quantum, quantum, Generator::kPieceTokens);
  while (!readers.empty()) {
    const auto next = std::min_element(readers.begin(), readers.end(), [this](Turn* a, Turn* b) {
      const uint64_t of_a = clock_.served(a->request().fairness_key);
      const uint64_t of_b = clock_.served(b->request().fairness_key);
      return of_a != of_b ? of_a < of_b : a->last_served < b->last_served;
    });
    Turn& turn = **next;
    const int64_t piece = runtime::Generator::piece_size(turn.session().evaluable(), piece_tokens_);
    if (piece > credit_) return;
    credit_ -= piece;
    turn.last_served = clock_.serve(turn.request().fairness_key);
    batch_.push_back(&turn.session());
    readers.erase(next);
  }
}

/// Draws and tells the tokens of the turns that have read all they had.
void Engine::finish_round() {
  drawing_.clear();
  std::erase_if(running_, [&](const TurnPointer& turn) {
    if (!turn->note_evaluated(metrics_)) return false;
    if (turn->is_complete()) {
      end(turn, FinishReason::kLength);
      return true;
    }
    drawing_.push_back(turn);
    return false;
  });
  const auto count = static_cast<int64_t>(drawing_.size());
  const model::HeadConfig& head = model_->config().head;
  const bool serial = count * head.output_dim() < kSerialChoices;
  parallel_for(serial ? nullptr : &pool_, count, [this](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) drawing_[static_cast<size_t>(i)]->draw();
  });
  const Clock::time_point now = Clock::now();
  for (const TurnPointer& turn : drawing_) {
    // A token less for those who left meanwhile; the turn ends in the next round.
    if (turn->interrupted(now)) continue;
    const auto delivered = turn->deliver(now, metrics_);
    if (delivered.ok() && !delivered->has_value()) continue;
    std::erase(running_, turn);
    if (delivered.ok()) {
      end(turn, **delivered);
    } else {
      end(turn, FinishReason::kError, delivered.error());
    }
  }
}

void Engine::end(const TurnPointer& turn, FinishReason reason, const Error& error) {
  if (turn->running) metrics_.running.fetch_sub(1, std::memory_order_relaxed);
  const double seconds = turn->end(reason, error, sessions_, &spares_, metrics_);
  const std::lock_guard lock(wake_->mutex);
  constexpr double kNewest = 0.1;  // weight of one turn in the mean
  mean_turn_seconds_ += kNewest * (seconds - mean_turn_seconds_);
  if (--live_ == 0) all_ended_.notify_all();
}

}  // namespace tarn::serve
