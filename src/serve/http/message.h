#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tarn::serve::http {

/// Names and values in the order they came or shall go. Names compare without case.
using Headers = std::vector<std::pair<std::string, std::string>>;

/// One request, whole: the body has arrived.
struct Request {
  std::string method;  ///< as sent, but "GET" for a HEAD, whose body the server then keeps back
  std::string path;    ///< as sent, still percent-encoded; starts with '/'
  std::string query;   ///< what follows '?', still percent-encoded
  Headers headers;
  std::string body;
  std::string id;     ///< the client's X-Request-Id when it is a plain one, else a random one
  std::string peer;   ///< the client's numeric address
  bool head = false;  ///< it was a HEAD

  /// The first header of that name, or null.
  const std::string* header(std::string_view name) const;
  /// How many headers have that name.
  int64_t count(std::string_view name) const;
  /// The decoded value of the first query parameter of that name ("name=value" or "name").
  std::optional<std::string> parameter(std::string_view name) const;
};

/// "%41+b" as "A+b"; nothing when a '%' is not followed by two hexadecimal digits.
std::optional<std::string> percent_decode(std::string_view text);

/// A whole answer. The server adds Content-Length, Date, Connection and X-Request-Id.
struct Reply {
  int status = 200;
  std::string content_type = "application/json";  ///< "": no such header
  Headers headers = {};                           ///< control characters in values become spaces
  std::string body = {};
};

/// {"error":{"message","type","param":null,"code"}} as the OpenAI clients read it; the type follows
/// from the status.
Reply error_reply(int status, std::string_view code, std::string_view message);

/// The head of an answer that comes piece by piece. A text/event-stream also gets what keeps
/// proxies from buffering it, and pings (ServerOptions) while it is idle.
struct StreamHead {
  int status = 200;
  std::string content_type = "text/event-stream";
  Headers headers = {};
};

/// The answering side of one request. Either send(), or start_stream(), write()s and finish(); what
/// comes after the end is ignored. When the last pointer to an exchange goes before its end, the
/// client gets a 500, or a cut stream. May outlive the server. Threads: any, also several at once.
class Exchange {
 public:
  Exchange() = default;
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  virtual void send(Reply reply) = 0;

  /// False: nobody reads a stream (the client has gone, or it was a HEAD); the exchange has ended.
  virtual bool start_stream(StreamHead head) = 0;
  /// Never blocks. False: the client has gone or does not read, and the stream is over. A write to
  /// an event stream is whole events, so that pings can go between. A write that finds the queue
  /// empty may be longer than Limits::stream_queue_bytes.
  virtual bool write(std::string_view bytes) = 0;
  virtual void finish() = 0;

  /// Calls `callback` once when the client closes, stalls, overflows or is cut off before the
  /// exchange has ended; at once when that has happened already. Runs on an I/O thread or inside
  /// this call: it must be quick. Dropped when the exchange ends; a later one replaces an earlier.
  /// Closing the sending half of a connection counts as closing.
  virtual void on_gone(std::function<void()> callback) = 0;
  virtual bool gone() const = 0;
};

/// Called on a worker thread. It may return before the answer is complete, or block a worker until
/// then. What it throws becomes a 500.
using Handler = std::function<void(const Request& request, std::shared_ptr<Exchange> exchange)>;

}  // namespace tarn::serve::http
