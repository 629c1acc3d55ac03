#include "http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tarn::serve::http {

std::optional<ClientAnswer> take_answer(std::string* bytes, bool head_only) {
  const size_t end = bytes->find("\r\n\r\n");
  if (end == std::string::npos) return std::nullopt;
  ClientAnswer answer;
  answer.head = bytes->substr(0, end + 2);
  if (answer.head.size() < 12) return std::nullopt;
  answer.status = std::atoi(answer.head.c_str() + 9);
  size_t at = end + 4;
  const size_t length = answer.head.find("\r\nContent-Length: ");
  if (head_only || answer.status < 200 || answer.status == 204) {
  } else if (length != std::string::npos) {
    const auto size = static_cast<size_t>(std::atoll(answer.head.c_str() + length + 18));
    if (bytes->size() - at < size) return std::nullopt;
    answer.body = bytes->substr(at, size);
    at += size;
  } else if (answer.head.find("\r\nTransfer-Encoding: chunked\r\n") != std::string::npos) {
    while (true) {
      const size_t line = bytes->find("\r\n", at);
      if (line == std::string::npos) return std::nullopt;
      const size_t size = std::strtoull(bytes->c_str() + at, nullptr, 16);
      if (bytes->size() < line + 4 + size) return std::nullopt;
      answer.body += bytes->substr(line + 2, size);
      at = line + 4 + size;
      if (size == 0) break;
    }
  }
  bytes->erase(0, at);
  return answer;
}

HttpClient::HttpClient(int port, const char* address, int receive_buffer) {
  sockaddr_storage where{};
  socklen_t size = sizeof(sockaddr_in);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&where);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&where);
  if (::inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
  } else {
    ::inet_pton(AF_INET6, address, &v6->sin6_addr);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof(sockaddr_in6);
  }
  fd_ = ::socket(where.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&where), size) != 0) close();
}

HttpClient::HttpClient(HttpClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), bytes_(std::move(other.bytes_)) {}

HttpClient::~HttpClient() { close(); }

void HttpClient::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd poll{fd_, POLLOUT, 0};
    if (::poll(&poll, 1, static_cast<int>(patience.count())) != 1) return false;
    const int64_t sent = send_some(bytes);
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

int64_t HttpClient::send_some(std::string_view bytes) {
  const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  return sent;
}

bool HttpClient::fill() {
  pollfd poll{fd_, POLLIN, 0};
  if (::poll(&poll, 1, static_cast<int>(patience.count())) != 1) return false;
  char buffer[65536];
  const ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
  if (size <= 0) return false;
  bytes_.append(buffer, static_cast<size_t>(size));
  return true;
}

ClientAnswer HttpClient::answer(bool head_only) {
  while (true) {
    if (auto answer = take_answer(&bytes_, head_only)) return std::move(*answer);
    if (!fill()) return {};
  }
}

ClientAnswer HttpClient::get(std::string_view path) {
  send("GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n\r\n");
  return answer();
}

std::string HttpClient::read_until(std::string_view text) {
  while (bytes_.find(text) == std::string::npos && fill()) {
  }
  return std::exchange(bytes_, {});
}

bool HttpClient::closed() {
  while (true) {
    pollfd poll{fd_, POLLIN, 0};
    if (::poll(&poll, 1, static_cast<int>(patience.count())) != 1) return false;
    char buffer[65536];
    if (::recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
  }
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace tarn::serve::http
