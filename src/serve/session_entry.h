#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/session_table.h"

namespace tarn::serve {

/// What the table knows of one id. `session`, `marks`, `sampler` and
/// `companion` belong to whoever holds or moves
/// the entry, the rest to the table's mutex.
struct SessionTable::Entry {
  enum class Use : uint8_t { kFree, kHeld, kMoving };
  struct Mark {
    std::string name;
    runtime::Session session;
  };
  std::string id;
  std::optional<runtime::Session> session;
  std::vector<Mark> marks;
  runtime::SamplerOptions sampler;
  std::shared_ptr<void> companion;

  Use use = Use::kMoving;
  bool resident = false;
  bool known = false;  ///< false: only asked for, perhaps it exists nowhere
  bool idle = false;   ///< in the table's list of idle entries, at `place`
  int64_t waiters = 0;
  int64_t bytes = 0;    ///< that the table counts for it
  SessionInfo figures;  ///< of its last release
  std::list<std::shared_ptr<Entry>>::iterator place{};
};

}  // namespace tarn::serve
