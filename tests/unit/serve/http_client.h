#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tarn::serve::http {

/// An answer as a client reads it.
struct ClientAnswer {
  int status = 0;
  std::string head;  ///< status line and fields
  std::string body;  ///< with chunks joined
};

/// Takes one whole answer from the front of *bytes; nothing while it is incomplete. `head_only`: it
/// answers a HEAD.
std::optional<ClientAnswer> take_answer(std::string* bytes, bool head_only = false);

/// A client that sends what bytes it likes. Every wait ends after `patience` at the latest.
class HttpClient {
 public:
  explicit HttpClient(int port, const char* address = "127.0.0.1", int receive_buffer = 0);
  ~HttpClient();
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;

  bool connected() const { return fd_ >= 0; }
  /// False when the connection broke before all was sent.
  bool send(std::string_view bytes);
  /// Sends without waiting; how many bytes the kernel took, negative when the connection is broken.
  int64_t send_some(std::string_view bytes);
  /// The next whole answer, or one with status 0.
  ClientAnswer answer(bool head_only = false);
  ClientAnswer get(std::string_view path);
  /// What has come until `text` is in it, or all until the end or the patience's.
  std::string read_until(std::string_view text);
  /// True when the server closes; drops what comes before.
  bool closed();
  void close();

  std::chrono::milliseconds patience{5000};

 private:
  bool fill();

  int fd_ = -1;
  std::string bytes_;
};

/// Of this process.
int64_t resident_bytes();

}  // namespace tarn::serve::http
