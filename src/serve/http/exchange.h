#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/counters.h"
#include "serve/http/message.h"
#include "serve/http/text.h"

namespace tarn::serve::http {

/// Has the I/O thread look at a connection soon. Threads: any.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

/// Where a handler's threads and the connection's I/O thread meet: the bytes of one answer on their
/// way, and whether anybody still wants them.
class ExchangeState {
 public:
  /// `queue_bytes` bounds what a stream may have waiting.
  ExchangeState(AnswerForm form, int64_t queue_bytes, std::shared_ptr<Waker> waker);

  // The handler's side, as Exchange says.
  void send(const Reply& reply);
  bool start_stream(const StreamHead& head);
  bool write(std::string_view bytes);
  void finish();
  void on_gone(std::function<void()> callback);
  bool gone() const;
  /// The handler has let go of it: a 500, or a broken stream, unless it has ended.
  void abandon();

  // The I/O thread's side.
  struct Progress {
    bool done = false;        ///< nothing comes after what was taken
    bool broken = false;      ///< and that is no proper end
    bool keep_alive = false;  ///< when done
  };
  /// The client reads too slowly: it is to be lost, whatever of the answer is under way.
  bool overflowed() const;
  /// Moves what waits to *out, which must be empty.
  Progress take(std::string* out);
  /// The kernel has that many bytes of what was taken.
  void sent(size_t bytes);
  /// Ends it and calls on_gone's callback, unless it has ended.
  void lose();
  /// Writes an empty comment when this is an event stream with nothing on its way.
  void ping();
  /// The connection will close after this answer; said in its head if that is not written yet.
  void forbid_keep_alive();
  int status() const;  ///< 0: none yet
  bool streams() const;

 private:
  enum class Phase { kWaiting, kStreaming, kDone };

  void append(std::string_view bytes);
  std::function<void()> end();
  void wake(bool wanted);

  mutable std::mutex mutex_;
  AnswerForm form_;
  const size_t queue_bytes_;
  const std::shared_ptr<Waker> waker_;
  Phase phase_ = Phase::kWaiting;
  bool gone_ = false, broken_ = false, overflowed_ = false;
  bool events_ = false;  // an event stream
  bool stream_ = false;
  int status_ = 0;
  bool woken_ = false;  // the I/O thread has been told and has not looked yet
  std::string pending_;
  size_t in_flight_ = 0;  // taken and not yet sent
  std::function<void()> callback_;
};

/// A handler's hold on an exchange; the last one to go abandons it.
std::shared_ptr<Exchange> make_exchange(std::shared_ptr<ExchangeState> state);

}  // namespace tarn::serve::http
