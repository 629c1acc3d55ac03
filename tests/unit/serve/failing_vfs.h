#pragma once

#include <sqlite3.h>

#include <memory>

namespace tarn::serve {

/// SQLite's file system with failures at will: the default for databases opened while it lives.
class FailingVfs {
 public:
  enum class What { kSync, kWrite };

  FailingVfs();
  FailingVfs(const FailingVfs&) = delete;
  FailingVfs& operator=(const FailingVfs&) = delete;
  ~FailingVfs();

  /// The next flush or write fails, and all after it.
  void fail_next(What what);
  /// After `operations` more writes, flushes and truncations all of them fail.
  void fail_after(int operations);
  void stop_failing();
  bool has_failed() const;
};

}  // namespace tarn::serve
