#include "serve/http/exchange.h"

#include <algorithm>
#include <utility>

namespace tarn::serve::http {

namespace {

class HeldExchange final : public Exchange {
 public:
  explicit HeldExchange(std::shared_ptr<ExchangeState> state) : state_(std::move(state)) {}
  ~HeldExchange() override { state_->abandon(); }

  void send(Reply reply) override { state_->send(reply); }
  bool start_stream(StreamHead head) override { return state_->start_stream(head); }
  bool write(std::string_view bytes) override { return state_->write(bytes); }
  void finish() override { state_->finish(); }
  void on_gone(std::function<void()> callback) override { state_->on_gone(std::move(callback)); }
  bool gone() const override { return state_->gone(); }

 private:
  const std::shared_ptr<ExchangeState> state_;
};

bool valid_status(int status) { return status >= 200 && status < 600; }

}  // namespace

// Callbacks are moved out under the lock, and called or destroyed outside it: they may hold, or
// call, anything.

ExchangeState::ExchangeState(AnswerForm form, int64_t queue_bytes, std::shared_ptr<Waker> waker)
    : form_(std::move(form)),
      queue_bytes_(static_cast<size_t>(queue_bytes)),
      waker_(std::move(waker)) {}

void ExchangeState::wake(bool wanted) {
  if (wanted && waker_) waker_->wake();
}

std::function<void()> ExchangeState::end() {
  phase_ = Phase::kDone;
  return std::exchange(callback_, nullptr);
}

void ExchangeState::send(const Reply& reply) {
  std::function<void()> dropped;
  bool wanted = false;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kWaiting || gone_) return;
    status_ = valid_status(reply.status) ? reply.status : 500;
    pending_ = format_head(form_, status_, reply.content_type, reply.headers,
                           static_cast<int64_t>(reply.body.size()));
    if (!form_.head && !has_no_body(status_)) pending_ += reply.body;
    dropped = end();
    wanted = !std::exchange(woken_, true);
  }
  wake(wanted);
}

bool ExchangeState::start_stream(const StreamHead& head) {
  std::function<void()> dropped;
  bool wanted = false;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kWaiting || gone_) return false;
    status_ = valid_status(head.status) && !has_no_body(head.status) ? head.status : 500;
    events_ = head.content_type == "text/event-stream";
    Headers headers = head.headers;
    if (events_) {
      headers.emplace_back("Cache-Control", "no-cache");
      headers.emplace_back("X-Accel-Buffering", "no");
    }
    if (!form_.http11) form_.keep_alive = false;  // only the connection's end tells the body's
    pending_ = format_head(form_, status_, head.content_type, headers, -1);
    phase_ = Phase::kStreaming;
    stream_ = true;
    if (form_.head) dropped = end();
    wanted = !std::exchange(woken_, true);
  }
  wake(wanted);
  return !form_.head;
}

void ExchangeState::append(std::string_view bytes) {
  if (form_.http11) {
    append_chunk(bytes, &pending_);
  } else {
    pending_ += bytes;
  }
}

bool ExchangeState::write(std::string_view bytes) {
  bool wanted = false;
  bool taken = true;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kStreaming || gone_) return false;
    const size_t waiting = pending_.size() + in_flight_;
    if (waiting > 0 && waiting + bytes.size() > queue_bytes_) {
      // The I/O thread will tell: here, on the writer's own thread, it may hold locks.
      overflowed_ = gone_ = true;
      pending_.clear();
      taken = false;
    } else {
      append(bytes);
    }
    wanted = !std::exchange(woken_, true);
  }
  wake(wanted);
  return taken;
}

void ExchangeState::finish() {
  std::function<void()> dropped;
  bool wanted = false;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kStreaming || gone_) return;
    if (form_.http11) pending_ += "0\r\n\r\n";
    dropped = end();
    wanted = !std::exchange(woken_, true);
  }
  wake(wanted);
}

void ExchangeState::on_gone(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (!gone_ || overflowed_) {
      // Of an overflow the I/O thread tells, unless it has done so.
      if (phase_ != Phase::kDone) std::swap(callback, callback_);
      return;
    }
  }
  if (callback) callback();
}

bool ExchangeState::overflowed() const {
  std::lock_guard lock(mutex_);
  return overflowed_;
}

bool ExchangeState::gone() const {
  std::lock_guard lock(mutex_);
  return gone_;
}

void ExchangeState::abandon() {
  bool waiting = false;
  {
    std::lock_guard lock(mutex_);
    waiting = phase_ == Phase::kWaiting;
  }
  if (waiting) return send(error_reply(500, "no_answer", "the server ended without an answer"));
  bool wanted = false;
  std::function<void()> dropped;
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kStreaming || gone_) return;
    broken_ = true;
    dropped = end();
    wanted = !std::exchange(woken_, true);
  }
  wake(wanted);
}

ExchangeState::Progress ExchangeState::take(std::string* out) {
  std::lock_guard lock(mutex_);
  woken_ = false;
  out->swap(pending_);
  in_flight_ += out->size();
  return {phase_ == Phase::kDone, broken_, form_.keep_alive};
}

void ExchangeState::sent(size_t bytes) {
  std::lock_guard lock(mutex_);
  in_flight_ -= std::min(in_flight_, bytes);
}

void ExchangeState::lose() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    gone_ = true;
    overflowed_ = false;
    pending_ = {};
    callback = end();
  }
  if (callback) callback();
}

void ExchangeState::ping() {
  std::lock_guard lock(mutex_);
  if (phase_ == Phase::kStreaming && events_ && !gone_ && pending_.empty() && in_flight_ == 0) {
    append(": ping\n\n");
  }
}

void ExchangeState::forbid_keep_alive() {
  std::lock_guard lock(mutex_);
  form_.keep_alive = false;
}

int ExchangeState::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

bool ExchangeState::streams() const {
  std::lock_guard lock(mutex_);
  return stream_;
}

std::shared_ptr<Exchange> make_exchange(std::shared_ptr<ExchangeState> state) {
  return std::make_shared<HeldExchange>(std::move(state));
}

}  // namespace tarn::serve::http
