#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/counters.h"
#include "serve/http/message.h"
#include "serve/http/server.h"

namespace tarn::serve::http {

/// Why bytes are no request that this server takes, and what to answer.
struct Failure {
  int status = 400;
  Refused reason = Refused::kMalformed;
  std::string code;
  std::string message;
};

/// Reads one HTTP/1 request from bytes as they come. Beyond RFC 9112's rules it refuses what
/// proxies have been fooled with: transfer codings other than chunked, several Host fields, a
/// length beside a coding. Memory: at most the body and the header, as far as they have come.
class RequestParser {
 public:
  enum class Step {
    kMore,    ///< more bytes are needed, after those not used
    kHeader,  ///< the header is complete, and a body follows; told once
    kDone,    ///< the request is complete; bytes not used belong to the next one
    kFailed,
  };

  explicit RequestParser(const Limits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  /// Reads from the front of `bytes`, which are the ones left from the last call and what has come
  /// since. Sets *used to how many are not needed again. Not to be called after kDone or kFailed.
  Step put(std::string_view bytes, size_t* used);

  /// As far as it is known; id and peer are the caller's.
  Request& request();
  bool http11() const;
  bool keep_alive() const;        ///< from kDone on
  bool expects_continue() const;  ///< from kHeader on
  const Failure& failure() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarn::serve::http
