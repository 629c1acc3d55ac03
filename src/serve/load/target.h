#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tarn::serve::load {

/// Where a server is.
struct Target {
  std::string host;  ///< a name or a numeric address, IPv6 without brackets
  int port = 80;
  std::string prefix;  ///< of every path, such as "/proxy"; "/v1" at the end is taken off

  /// The bytes of a request that keeps the connection; `path` behind the prefix. An empty `key`
  /// sends none, an empty body of a GET neither length nor type.
  std::string request(std::string_view method, std::string_view path, std::string_view body,
                      std::string_view key) const;
};

/// Reads "http://host[:port][/prefix]". Errors: https (this client speaks no TLS), anything else
/// that is no such URL.
Result<Target> parse_target(const std::string& url);

}  // namespace tarn::serve::load
