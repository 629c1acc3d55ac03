#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace tarn::serve::http {

/// How many things of each name there are now. Memory: the names with any. Threads: any.
class Tally {
 public:
  /// One more, unless that would pass `limit`; 0: no limit.
  bool add(const std::string& name, int64_t limit) {
    std::lock_guard lock(mutex_);
    const auto [at, added] = counts_.try_emplace(name, 0);
    if (limit > 0 && at->second >= limit) return false;
    ++at->second;
    return true;
  }

  void remove(const std::string& name) {
    std::lock_guard lock(mutex_);
    const auto at = counts_.find(name);
    if (at != counts_.end() && --at->second <= 0) counts_.erase(at);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace tarn::serve::http
