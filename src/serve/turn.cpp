#include "serve/turn.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tarn::serve {

using runtime::Session;

namespace {

/// Whether the memory of a copy stays for later turns: giving it back and taking it again each time
/// leaves holes in which small allocations settle. Caches would be kept at their largest.
bool keep_spare(const Session& copy, size_t kept) {
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  return copy.state().bytes_per_token() == 0 &&
         (static_cast<int64_t>(kept) + 1) * SessionTable::bytes_of(copy) <= kMostBytes;
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kDeadline: return "deadline";
    case FinishReason::kError: return "error";
  }
  return "";
}

void Handle::cancel() {
  if (!control_) return;
  control_->cancelled.store(true, std::memory_order_relaxed);
  const std::lock_guard lock(control_->wake->mutex);
  control_->wake->changed.notify_all();
}

bool Handle::done() const {
  if (!control_) return true;
  const std::lock_guard lock(control_->mutex);
  return control_->done;
}

void Handle::wait() const {
  if (!control_) return;
  std::unique_lock lock(control_->mutex);
  control_->ended.wait(lock, [this] { return control_->done; });
}

Turn::Turn(Request request, SessionTable::Lease lease,
           std::function<void(SessionTable::Lease)> give_back, std::shared_ptr<Wake> wake,
           Clock::time_point submitted)
    : request_(std::move(request)),
      control_(std::make_shared<TurnControl>()),
      lease_(std::move(lease)),
      give_back_(std::move(give_back)),
      submitted_(submitted),
      stop_(request_.stop) {
  control_->wake = std::move(wake);
}

double Turn::seconds_since_submit(Clock::time_point now) const {
  return std::chrono::duration<double>(now - submitted_).count();
}

std::optional<FinishReason> Turn::interrupted(Clock::time_point now) const {
  if (control_->cancelled.load(std::memory_order_relaxed)) return FinishReason::kCancelled;
  if (request_.deadline && now >= *request_.deadline) return FinishReason::kDeadline;
  if (session_ == nullptr && request_.start_by && now >= *request_.start_by)
    return FinishReason::kDeadline;
  return std::nullopt;
}

Status Turn::take_memory(const model::Model& model, SessionTable& table) {
  if (charged_ > 0) return {};
  const int64_t outputs = model.config().head.output_dim();
  const int64_t bytes = request_.session.empty() ? runtime::SequenceState::used_bytes_at(model, 0) +
                                                       outputs * static_cast<int64_t>(sizeof(float))
                                                 : SessionTable::bytes_of(lease_.session());
  TARN_RETURN_IF_ERROR(table.charge(bytes));
  charged_ = bytes;
  return {};
}

Status Turn::begin(const std::shared_ptr<const model::Model>& model, SessionTable& table,
                   std::vector<Session>* spares, Metrics& metrics) {
  queued_seconds_ = seconds_since_submit(Clock::now());
  metrics.queue_time.observe(queued_seconds_);
  has_text_ = model->config().modality == model::Modality::kBytes;
  TARN_RETURN_IF_ERROR(take_memory(*model, table));
  if (request_.session.empty()) {
    own_.emplace(model, Session::Options{request_.seed.value_or(0), 0, false});
    session_ = &*own_;
  } else {
    session_ = &lease_.session();
    if (request_.if_tokens && session_->token_count() != *request_.if_tokens) {
      return Error{ErrorCode::kConflict,
                   "has " + std::to_string(session_->token_count()) + " tokens, wanted " +
                       std::to_string(*request_.if_tokens),
                   "session " + request_.session};
    }
  }
  if (!own_) {
    if (spares->empty()) {
      before_ = session_->mark();
    } else {
      before_ = std::move(spares->back());
      spares->pop_back();
      before_->rollback(*session_);
    }
    sampler_before_ = std::exchange(lease_.sampler(), request_.sampler);
  }
  if (request_.seed) session_->rng() = {*request_.seed, 0, 0};
  // The rest of a character that was drawn cannot come from behind a prompt.
  if (!request_.prompt.empty()) session_->text() = {};
  counted_position_ = session_->position();
  sampler_.emplace(model->config().head, request_.sampler);
  return session_->append(request_.prompt);
}

Status Turn::reserve(SessionTable& table) {
  runtime::SequenceState& state = session_->state();
  const int64_t needed = session_->position() + session_->evaluable();
  if (needed <= state.capacity_tokens()) return {};
  const int64_t grown = std::max(needed, 2 * state.capacity_tokens()) - state.capacity_tokens();
  const int64_t bytes = grown * state.bytes_per_token();
  if (bytes > 0) {
    TARN_RETURN_IF_ERROR(table.charge(bytes));
    charged_ += bytes;
  }
  return state.reserve(needed);
}

bool Turn::note_evaluated(Metrics& metrics) {
  if (!has_read_) {
    const int64_t evaluated = session_->position() - counted_position_;
    counted_position_ += evaluated;
    evaluated_ += evaluated;
    metrics.prompt_tokens.fetch_add(evaluated, std::memory_order_relaxed);
    has_read_ = session_->evaluable() == 0;
  }
  return session_->evaluable() == 0;
}

void Turn::draw() {
  token_ = session_->draw(*sampler_);
  if (!request_.log_probs || !token_.ok()) return;
  token_log_probs_ = runtime::drawn_log_probs(session_->model().config().head, session_->output(),
                                              *token_, *request_.log_probs);
}

Result<std::optional<FinishReason>> Turn::deliver(Clock::time_point now, Metrics& metrics) {
  TARN_ASSIGN(const int32_t token, std::move(token_));
  ++drawn_;
  metrics.generated_tokens.fetch_add(1, std::memory_order_relaxed);
  if (drawn_ == 1) {
    first_token_seconds_ = seconds_since_submit(now);
    metrics.time_to_first_token.observe(first_token_seconds_);
  } else {
    metrics.inter_token_latency.observe(std::chrono::duration<double>(now - last_token_).count());
  }
  last_token_ = now;
  std::string piece, text;
  bool stopped = false;
  if (has_text_) {
    piece = session_->text_of(token);
    // Without a session nothing can finish the character any more.
    if (own_ && is_complete()) session_->text().flush(&piece);
    stopped = stop_.push(piece, &text);
    if (is_complete()) stop_.flush(&text);
  }
  TokenEvent event{token, text, session_->token_count() - 1};
  if (request_.log_probs) {
    const bool waits = has_text_ && !session_->text().pending().empty();
    log_probs_.push(std::move(token_log_probs_), piece, waits);
    event.log_probs = log_probs_.tell(text.size(), !has_text_ || (is_complete() && !stopped));
  }
  if (request_.on_token) request_.on_token(event);
  if (stopped) return std::optional(FinishReason::kStop);
  if (is_complete()) return std::optional(FinishReason::kLength);
  return std::optional<FinishReason>();
}

double Turn::end(FinishReason reason, const Error& error, SessionTable& table,
                 std::vector<Session>* spares, Metrics& metrics) {
  const bool keeps = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (before_ && !keeps) {
    std::swap(*session_, *before_);
    lease_.sampler() = sampler_before_;
  }
  if (before_ && keep_spare(*before_, spares->size())) spares->push_back(std::move(*before_));
  before_.reset();
  TurnEnd end;
  end.reason = reason;
  end.error = error;
  end.stop_string = stop_.found();
  end.tokens_evaluated = evaluated_;
  end.tokens_drawn = drawn_;
  end.token_count = session_ != nullptr ? session_->token_count() : 0;
  end.queued_seconds = queued_seconds_;
  end.first_token_seconds = first_token_seconds_;
  end.seconds = seconds_since_submit(Clock::now());
  if (session_ == nullptr) end.queued_seconds = end.seconds;
  session_ = nullptr;
  own_.reset();
  if (give_back_) {
    give_back_(std::move(lease_));
  } else {
    lease_.release();
  }
  table.discharge(charged_);
  metrics.finished[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  if (request_.on_end) request_.on_end(end);
  const std::lock_guard lock(control_->mutex);
  control_->done = true;
  control_->ended.notify_all();
  return end.seconds;
}

}  // namespace tarn::serve
