#include "serve/api/turn_group.h"

#include <utility>

namespace tarn::serve::api {

void append_event(const Json& json, std::string* out) {
  *out += "data: ";
  *out += json.dump();
  *out += "\n\n";
}

TurnGroup::TurnGroup(std::shared_ptr<http::Exchange> exchange, std::unique_ptr<Answer> answer,
                     bool stream, size_t turns)
    : exchange_(std::move(exchange)),
      answer_(std::move(answer)),
      stream_(stream),
      running_(turns) {}

void TurnGroup::run(SessionService& service, std::vector<SessionTurn> turns) {
  if (const auto failure = submit(service, std::move(turns))) {
    cancel();
    exchange_->send(error_reply(*failure));
    return;
  }
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->cancel();
  });
  start();
}

std::optional<Failure> TurnGroup::submit(SessionService& service, std::vector<SessionTurn> turns) {
  for (size_t i = 0; i < turns.size(); ++i) {
    turns[i].request.on_token = [self = shared_from_this(), i](const TokenEvent& event) {
      self->on_token(i, event);
    };
    turns[i].on_end = [self = shared_from_this(), i](const TurnResult& result) {
      self->on_end(i, result);
    };
    TurnSubmission submission = service.submit(std::move(turns[i]));
    if (submission.refusal) return refusal_failure(*submission.refusal);
    bool cancelled = false;
    {
      const std::lock_guard lock(handles_mutex_);
      cancelled = cancelled_;
      handles_.push_back(submission.handle);
    }
    if (cancelled) submission.handle.cancel();
  }
  return std::nullopt;
}

void TurnGroup::start() {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
    // A turn that has failed by now still gets a status of its own.
    if (stream_ && !failure_) {
      std::string begun;
      answer_->begin(&begun);
      pending_.insert(0, begun);
      streaming_ = true;
      lost_ = !exchange_->start_stream({});
    }
    lost = !flush();
    finish_if_done();
  }
  if (lost) cancel();
}

void TurnGroup::on_token(size_t choice, const TokenEvent& event) {
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    answer_->token(choice, event, &pending_);
    lost = !flush();
  }
  if (lost) cancel();
}

void TurnGroup::on_end(size_t choice, const TurnResult& result) {
  const FinishReason reason = result.end.reason;
  const bool good = reason == FinishReason::kStop || reason == FinishReason::kLength;
  {
    const std::lock_guard lock(mutex_);
    --running_;
    if (!good && !failure_) {
      failure_ = turn_failure(result.end);
    } else if (!failure_) {
      answer_->choice_end(choice, result, &pending_);
      flush();
    }
    finish_if_done();
  }
  if (!good) cancel();
}

void TurnGroup::cancel() {
  std::vector<TurnHandle> handles;
  {
    const std::lock_guard lock(handles_mutex_);
    cancelled_ = true;
    handles.swap(handles_);
  }
  for (TurnHandle& handle : handles) handle.cancel();
}

bool TurnGroup::flush() {
  if (!streaming_) return true;
  if (!lost_ && !pending_.empty() && !failure_) lost_ = !exchange_->write(pending_);
  pending_.clear();
  return !lost_;
}

void TurnGroup::finish_if_done() {
  if (!started_ || running_ > 0) return;
  if (!streaming_) {
    if (failure_) {
      exchange_->send(error_reply(*failure_));
    } else {
      exchange_->send({.body = answer_->body().dump()});
    }
    return;
  }
  if (lost_) return;
  if (failure_) {
    append_event(error_json(*failure_), &pending_);
  } else {
    answer_->stream_end(&pending_);
  }
  exchange_->write(pending_);
  exchange_->finish();
}

}  // namespace tarn::serve::api
