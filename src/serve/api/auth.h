#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/http/message.h"

namespace tarn::serve::api {

struct ApiKey {
  std::string name;  ///< for logs, metrics and fairness
  std::string key;
};

/// One key per line, "name:key" or "key" (then named "key" and the line's number); empty lines and
/// lines that begin with '#' are left out. Errors name the line, never the key: no keys at all, blanks
/// or control characters in one, a name or a key twice.
Result<std::vector<ApiKey>> parse_api_keys(std::string_view text, const std::string& where);

/// The keys that a server takes. Threads: any.
class ApiKeys {
 public:
  explicit ApiKeys(std::vector<ApiKey> keys);

  bool empty() const { return keys_.empty(); }
  /// The name of the key that the request brings ("Authorization: Bearer KEY"), or null. Every key is
  /// compared, by a hash that is secret to this process and then byte by byte, so that the time
  /// says nothing about them.
  const std::string* find(const http::Request& request) const;

 private:
  using Hash = std::array<uint8_t, 16>;
  Hash hash(std::string_view key) const;

  uint64_t secret_ = 0;
  std::vector<ApiKey> keys_;
  std::vector<Hash> hashes_;
};

}  // namespace tarn::serve::api
