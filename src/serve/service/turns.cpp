// The half of the service that takes turns through lease, engine and save.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "runtime/snapshot.h"
#include "serve/service/implementation.h"

namespace tarn::serve {
namespace {

Refusal refuse(RefusalReason reason, Error error, double retry_after = 0) {
  return {reason, std::move(error), retry_after};
}

Refusal invalid(std::string message, std::string where) {
  return refuse(RefusalReason::kInvalid, invalid_argument(std::move(message), std::move(where)));
}

/// What an error of the store or the table means for a turn.
Refusal refusal_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kNotFound: return refuse(RefusalReason::kNotFound, error);
    case ErrorCode::kInvalidArgument: return refuse(RefusalReason::kInvalid, error);
    case ErrorCode::kConflict: return refuse(RefusalReason::kConflict, error);
    default: return refuse(RefusalReason::kFailed, error);
  }
}

/// Of a session's results, which its every version has; the newest is kept however large it is.
constexpr int64_t kMaxResultBytes = int64_t{1} << 20;

/// About what a result takes, in memory and in versions.
int64_t bytes_of(const KeyedResult& result) {
  size_t bytes = sizeof(result) + result.key.size() + result.text.size();
  bytes += 4 * (result.tokens.size() + result.text_bytes.size() + result.log_prob_counts.size());
  for (const ToldLogProbs& told : result.log_probs) {
    bytes += sizeof(told) + told.of.likeliest.size() * sizeof(told.of.likeliest[0]);
  }
  return static_cast<int64_t>(bytes);
}

/// Line breaks that a text lacks of a blank line at its end when `token` comes behind it.
int missing_after(int missing, int32_t token) {
  return token == '\n' ? std::max(0, missing - 1) : kBlankLineBreaks;
}

Error lost_turns(const std::string& id) {
  return {ErrorCode::kConflict,
          "another server has saved the session meanwhile: the turns that were not saved here are "
          "gone: session " +
              id,
          kLostTurns};
}

}  // namespace

void TurnHandle::cancel() {
  if (!turn_) return;
  Handle engine;
  {
    const std::lock_guard lock(turn_->mutex);
    turn_->cancelled = true;
    engine = turn_->engine;
  }
  engine.cancel();
}

bool TurnHandle::done() const {
  if (!turn_) return true;
  const std::lock_guard lock(turn_->mutex);
  return turn_->done;
}

void TurnHandle::wait() const {
  if (!turn_) return;
  std::unique_lock lock(turn_->mutex);
  turn_->ended.wait(lock, [this] { return turn_->done; });
}

/// Why a turn cannot be taken, whatever its session is.
std::optional<Refusal> SessionService::Implementation::check(const SessionTurn& turn) {
  TARN_CHECK(!turn.request.on_end);
  const std::string& id = turn.request.session;
  if (id.empty() && turn.if_seq) return invalid("needs a session", kIfSeqConflict);
  if (turn.idempotency_key) {
    if (id.empty()) return invalid("needs a session", kKeyConflict);
    if (options_.idempotency_keys == 0) {
      return invalid("is given, but this server remembers no results", kKeyConflict);
    }
    if (!is_idempotency_key(*turn.idempotency_key)) {
      return invalid("wanted 1 to " + std::to_string(kMaxKeyBytes) + " printable characters",
                     kKeyConflict);
    }
  }
  if (!id.empty() && !is_session_id(id)) {
    return invalid("is no session id: wanted 1 to 64 of the characters A-Z a-z 0-9 _ -", "session");
  }
  if (auto refusal = engine_->refusal(turn.request)) return refusal;
  if (id.empty()) return std::nullopt;
  const StoreState state = store_->state();
  if (!state.read_only) return std::nullopt;
  return refuse(RefusalReason::kFailed, {ErrorCode::kReadOnly, state.reason, "store"});
}

void SessionService::Implementation::begin_turn() {
  const std::lock_guard lock(mutex_);
  ++running_;
}

TurnSubmission SessionService::Implementation::refused(Refusal refusal) {
  metrics_.refused.fetch_add(1, std::memory_order_relaxed);
  return {{}, std::move(refusal)};
}

TurnSubmission SessionService::Implementation::submit_alone(SessionTurn turn) {
  const auto running = std::make_shared<RunningTurn>();
  running->on_end = std::move(turn.on_end);
  turn.request.on_end = [this, running](const TurnEnd& end) {
    running->result.end = end;
    tell_end(*running);
  };
  begin_turn();
  Submission submission = engine_->submit(std::move(turn.request));
  if (!submission.admitted()) {
    running->on_end = nullptr;
    tell_end(*running);
    return refused(std::move(*submission.refusal));
  }
  const std::lock_guard lock(running->mutex);
  running->engine = submission.handle;
  return {TurnHandle(running), std::nullopt};
}

TurnSubmission SessionService::Implementation::submit(SessionTurn turn) {
  if (auto refusal = check(turn)) return refused(std::move(*refusal));
  if (turn.request.session.empty()) return submit_alone(std::move(turn));
  Result<Held> held = claim(turn.request);
  if (!held.ok()) {
    const bool full = held.error().code == ErrorCode::kResource;
    return refused(full ? refuse(RefusalReason::kFull, held.error(), 1.0)
                        : refusal_of(held.error()));
  }
  const auto running = std::make_shared<RunningTurn>();
  running->id = turn.request.session;
  running->resident = std::static_pointer_cast<Resident>(held->companion());
  running->held = std::move(*held);
  running->keyed.key = std::move(turn.idempotency_key).value_or("");
  running->keyed.request = hash_request(turn.request);
  bool stale = false, found = false;
  std::optional<Refusal> refusal = prepare(*running, &stale);
  if (!refusal) refusal = find_result(*running, &found);
  if (!refusal && found) {
    give_up(*running, stale);
    running->on_token = std::move(turn.request.on_token);
    running->on_end = std::move(turn.on_end);
    begin_turn();
    workers_->push([this, running] { replay(running); });
    return {TurnHandle(running), std::nullopt};
  }
  const int64_t seq = running->resident->seq;
  if (!refusal && turn.if_seq && *turn.if_seq != seq) {
    refusal = refuse(RefusalReason::kPrecondition,
                     {ErrorCode::kConflict,
                      "session " + running->id + " is at version " + std::to_string(seq) +
                          ", wanted " + std::to_string(*turn.if_seq),
                      kIfSeqConflict});
  }
  if (!refusal) refusal = refuse_full(*running);
  if (!refusal) watch_breaks(turn, *running);
  running->on_end = std::move(turn.on_end);
  if (!refusal) refusal = enter(std::move(turn.request), running);
  if (!refusal) return {TurnHandle(running), std::nullopt};
  give_up(*running, stale);
  return refused(std::move(*refusal));
}

Result<SessionTable::Lease> SessionService::Implementation::claim(const Request& request) {
  Clock::time_point until = Clock::now();
  if (request.wait_for_session) {
    until += std::chrono::seconds(options_.session_wait_seconds);
    until = std::min({until, request.deadline.value_or(until), request.start_by.value_or(until)});
  }
  while (true) {
    uint64_t given_back = 0;
    {
      const std::lock_guard lock(mutex_);
      given_back = given_back_;
    }
    Result<Held> held = engine_->sessions().claim(request.session);
    if (held.ok() || held.error().code != ErrorCode::kConflict) return held;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, until, [&] { return given_back_ != given_back; })) return held;
  }
}

std::optional<Refusal> SessionService::Implementation::prepare(RunningTurn& turn, bool* stale) {
  Resident& resident = *turn.resident;
  const Result<int64_t> seq = leases_.take(turn.id, turn.resident);
  if (!seq.ok()) {
    if (!resident.unsaved || seq.error().code != ErrorCode::kConflict) {
      Refusal refusal = refusal_of(seq.error());
      if (seq.error().where == kLeaseConflict) refusal.retry_after_seconds = lease_seconds(turn.id);
      return refusal;
    }
    *stale = true;
    return refusal_of(lost_turns(turn.id));
  }
  if (*seq != resident.seq) {
    *stale = true;
    if (resident.unsaved) return refusal_of(lost_turns(turn.id));
    if (*seq == 0) {
      return refusal_of({ErrorCode::kNotFound, "there is no such session", "session " + turn.id});
    }
    metrics_.stale.fetch_add(1, std::memory_order_relaxed);
    const Status reloaded = reload(turn.id, turn.held, *seq);
    if (!reloaded.ok()) return refusal_of(reloaded.error());
    *stale = false;
  }
  turn.tokens_before = turn.held.session().token_count();
  return std::nullopt;
}

std::optional<Refusal> SessionService::Implementation::find_result(RunningTurn& turn,
                                                                   bool* found) const {
  if (turn.keyed.key.empty()) return std::nullopt;
  const Resident& resident = *turn.resident;
  const int64_t oldest = now() - options_.idempotency_seconds * 1000;
  for (const KeyedResult& result : resident.results) {
    if (result.key != turn.keyed.key || result.ended_ms < oldest) continue;
    if (result.request != turn.keyed.request) {
      return refuse(RefusalReason::kConflict, {ErrorCode::kConflict,
                                               "belongs to an earlier request of session " +
                                                   turn.id + " that differs from this one",
                                               kKeyConflict});
    }
    *found = true;
    turn.keyed = result;
    turn.result.replayed = true;
    turn.result.saved = result.seq <= resident.seq;
    turn.result.seq = std::min(result.seq, resident.seq);
    return std::nullopt;
  }
  return std::nullopt;
}

/// Why nothing can be added to the session, if nothing can.
std::optional<Refusal> SessionService::Implementation::refuse_full(const RunningTurn& turn) const {
  const model::ModelConfig& config = engine_->model()->config();
  if (config.max_tokens == 0 || turn.tokens_before < config.max_tokens) return std::nullopt;
  if (config.modality == model::Modality::kImage) {
    return invalid("the picture is complete", "session");
  }
  return invalid("has " + std::to_string(turn.tokens_before) + " tokens, the model takes no more",
                 "session");
}

/// Puts the line breaks that the session lacks before the prompt, and counts on over the turn's text.
void SessionService::Implementation::watch_breaks(SessionTurn& turn, RunningTurn& running) const {
  if (engine_->model()->config().modality != model::Modality::kBytes) return;
  std::vector<int32_t>& prompt = turn.request.prompt;
  int& missing = running.missing_breaks = running.resident->missing_breaks;
  if (turn.after_blank_line) prompt.insert(prompt.begin(), static_cast<size_t>(missing), '\n');
  for (const int32_t token : prompt) missing = missing_after(missing, token);
}

/// Hands a prepared turn to the engine, which gives it to finish().
std::optional<Refusal> SessionService::Implementation::enter(Request request,
                                                             const TurnPointer& turn) {
  request.wait_for_session = false;
  request.on_token = [turn, told = std::move(request.on_token),
                      has_log_probs = request.log_probs.has_value()](const TokenEvent& event) {
    turn->missing_breaks = missing_after(turn->missing_breaks, event.token);
    if (!turn->keyed.key.empty()) {
      turn->keyed.tokens.push_back(event.token);
      turn->keyed.text_bytes.push_back(static_cast<uint32_t>(event.text.size()));
      turn->keyed.text += event.text;
      if (has_log_probs) {
        turn->keyed.log_prob_counts.push_back(static_cast<uint32_t>(event.log_probs.size()));
        turn->keyed.log_probs.insert(turn->keyed.log_probs.end(), event.log_probs.begin(),
                                     event.log_probs.end());
      }
    }
    if (told) told(event);
  };
  request.on_end = [this, turn](const TurnEnd& end) {
    turn->result.end = end;
    workers_->push([this, turn] { finish(turn); });
  };
  Leases::watch(*turn->resident, [weak = std::weak_ptr(turn)] {
    if (auto live = weak.lock()) TurnHandle(std::move(live)).cancel();
  });
  begin_turn();
  Submission submission =
      engine_->submit(std::move(request), turn->held,
                      [turn](SessionTable::Lease held) { turn->held = std::move(held); });
  if (!submission.admitted()) {
    Leases::watch(*turn->resident, nullptr);
    turn->on_end = nullptr;
    tell_end(*turn);
    return std::move(submission.refusal);
  }
  bool cancelled = false;
  {
    const std::lock_guard lock(turn->mutex);
    turn->engine = submission.handle;
    cancelled = turn->cancelled;
  }
  if (cancelled) submission.handle.cancel();
  return std::nullopt;
}

void SessionService::Implementation::give_up(RunningTurn& turn, bool stale) {
  if (stale || !turn.resident->unsaved) drop_lease(turn.id, *turn.resident);
  let_go(std::move(turn.held), stale);
}

/// Tells a remembered result; the session is not needed.
void SessionService::Implementation::replay(const TurnPointer& turn) {
  const KeyedResult& keyed = turn->keyed;
  const auto drawn = static_cast<int64_t>(keyed.tokens.size());
  std::string_view text = keyed.text;
  std::span<const ToldLogProbs> log_probs = keyed.log_probs;
  for (size_t i = 0; i < keyed.tokens.size(); ++i) {
    const size_t told = keyed.log_prob_counts.empty() ? 0 : keyed.log_prob_counts[i];
    if (turn->on_token) {
      turn->on_token({keyed.tokens[i], text.substr(0, keyed.text_bytes[i]),
                      keyed.token_count - drawn + static_cast<int64_t>(i), log_probs.first(told)});
    }
    text.remove_prefix(keyed.text_bytes[i]);
    log_probs = log_probs.subspan(told);
  }
  TurnEnd& end = turn->result.end;
  end.reason = keyed.reason;
  end.stop_string = keyed.stop_string;
  end.tokens_evaluated = keyed.tokens_evaluated;
  end.tokens_drawn = drawn;
  end.token_count = keyed.token_count;
  turn->result.durability = store_->durability();
  metrics_.replayed.fetch_add(1, std::memory_order_relaxed);
  tell_end(*turn);
}

void SessionService::Implementation::remember(RunningTurn& turn) const {
  KeyedResult& keyed = turn.keyed;
  if (keyed.key.empty()) return;
  const TurnEnd& end = turn.result.end;
  keyed.ended_ms = now();
  keyed.seq = turn.resident->seq + 1;
  keyed.reason = end.reason;
  keyed.stop_string = end.stop_string;
  keyed.tokens_evaluated = end.tokens_evaluated;
  keyed.token_count = end.token_count;
  std::vector<KeyedResult>& results = turn.resident->results;
  const int64_t oldest = keyed.ended_ms - options_.idempotency_seconds * 1000;
  std::erase_if(results, [&](const KeyedResult& result) {
    return result.key == keyed.key || result.ended_ms < oldest;
  });
  results.push_back(std::move(keyed));
  int64_t bytes = 0;
  size_t kept = 0;
  while (kept < results.size()) {
    bytes += bytes_of(results[results.size() - 1 - kept]);
    if (kept > 0 && bytes > kMaxResultBytes) break;
    ++kept;
  }
  results.erase(results.begin(), results.end() - static_cast<int64_t>(kept));
  while (results.size() > options_.idempotency_keys) results.erase(results.begin());
}

bool SessionService::Implementation::keep(RunningTurn& turn) {
  Resident& resident = *turn.resident;
  resident.token_count = turn.result.end.token_count;
  if (engine_->model()->config().modality == model::Modality::kBytes) {
    resident.missing_breaks = turn.missing_breaks;
  }
  remember(turn);
  if (resident.policy == SavePolicy::kManual) {
    resident.unsaved = true;
    Leases::watch(resident, nullptr);
    return true;
  }
  const std::string snapshot = runtime::encode_snapshot(turn.held.session(), turn.held.sampler());
  const Result<SaveResult> saved = store_version(turn.id, turn.resident, snapshot);
  if (saved.ok()) {
    turn.result.saved = true;
    return true;
  }
  turn.result.end.reason = FinishReason::kError;
  turn.result.end.error = saved.error();
  turn.result.end.token_count = turn.tokens_before;
  return false;
}

void SessionService::Implementation::finish(const TurnPointer& turn) {
  Resident& resident = *turn->resident;
  TurnEnd& end = turn->result.end;
  turn->result.durability = store_->durability();
  turn->result.seq = resident.seq;
  bool leaves = false;
  if (end.reason == FinishReason::kStop || end.reason == FinishReason::kLength) {
    leaves = !keep(*turn);
    // The copy of what was before is in the store.
    if (leaves) drop_lease(turn->id, resident);
    if (!leaves) turn->result.seq = resident.seq;
  } else if (resident.unsaved) {
    Leases::watch(resident, nullptr);
  } else {
    const Status released = leases_.release(turn->id, resident);
    if (!released.ok()) {
      end.reason = FinishReason::kError;
      end.error = released.error();
      leaves = true;
    }
  }
  turn->resident.reset();
  let_go(std::move(turn->held), leaves);
  tell_end(*turn);
}

void SessionService::Implementation::tell_end(RunningTurn& turn) {
  // Callbacks go with the turn: what they hold may hold the turn's handle.
  const auto on_token = std::move(turn.on_token);
  const auto on_end = std::move(turn.on_end);
  if (on_end) on_end(turn.result);
  {
    const std::lock_guard lock(turn.mutex);
    turn.done = true;
    turn.ended.notify_all();
  }
  const std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

}  // namespace tarn::serve
