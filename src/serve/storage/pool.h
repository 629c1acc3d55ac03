#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tarn::serve {

/// Open connections that wait for their next use; as many as were in use at once.
template <class Connection>
class Pool {
 public:
  /// An idle connection, or a new one opened with these arguments.
  template <class... Arguments>
  Result<std::unique_ptr<Connection>> take(const Arguments&... arguments) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Connection> connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    auto connection = std::make_unique<Connection>();
    TARN_RETURN_IF_ERROR(connection->open(arguments...));
    return connection;
  }

  /// Keeps a connection for the next use. If it broke, so did those that wait beside it.
  void give(std::unique_ptr<Connection> connection) {
    std::vector<std::unique_ptr<Connection>> dropped;  // closed outside the lock
    const std::lock_guard lock(mutex_);
    if (connection->is_alive()) {
      idle_.push_back(std::move(connection));
    } else {
      dropped.swap(idle_);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_;
};

}  // namespace tarn::serve
