#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "serve/store.h"

namespace tarn::serve {

/// A new value of a name, or none: the name goes.
struct Change {
  std::string name;
  std::optional<std::string> value;
};

/// What one write does. Databases apply all of it in one transaction. Plain files are applied in
/// this order: what the commit needs is durable before it, and a crash in between leaves objects
/// that nothing refers to.
struct Plan {
  std::vector<Change> before;
  std::optional<Change> commit;
  std::vector<Change> after;
  bool collects = false;  ///< afterwards every object has a reference

  bool empty() const { return before.empty() && !commit && after.empty(); }
};

using MaybeValue = std::optional<std::string>;
using NamedValue = std::pair<std::string, std::string>;

/// Reads inside a write: nothing that was read can change before the plan is applied.
class PlanReader {
 public:
  virtual ~PlanReader() = default;
  virtual Result<MaybeValue> get(const std::string& name) = 0;
  /// The names that start with `prefix`, sorted.
  virtual Result<std::vector<std::string>> names(const std::string& prefix) = 0;
};
using Planner = std::function<Result<Plan>(PlanReader&)>;

/// Where a store keeps its named byte strings. Names are `<kind>/<A-Za-z0-9_->`, made by the store;
/// kinds are "s" (heads of sessions), "r" (records), "c" (chunks), "n" (counts of references).
/// Threads: safe.
class Objects {
 public:
  virtual ~Objects() = default;
  Objects() = default;
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;

  /// The committed value.
  virtual Result<MaybeValue> get(const std::string& name) = 0;
  /// At most `limit` committed names with `prefix` that sort after `after`, and their values.
  virtual Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                               int limit) = 0;
  /// Reads and changes as if alone; `planner` may run several times. Its error is returned and
  /// nothing is changed.
  virtual Status update(const Planner& planner) = 0;

  virtual StoreState state() const { return {}; }
  virtual Durability durability() const = 0;
  /// Whether an earlier writer was killed between the steps of a plan.
  virtual bool left_over() const { return false; }
};

/// The first name after all that start with `prefix`.
inline std::string name_after(std::string prefix) {
  ++prefix.back();
  return prefix;
}

/// What open_store() opens its URLs with.
Result<std::unique_ptr<Objects>> open_objects(const std::string& url, const StoreOptions& options);
/// `objects` whose state() tells whether the last operation failed (kIo); the log gets one line when
/// that begins and one when it ends, with the `kind` of the place.
std::unique_ptr<Objects> watch_objects(std::unique_ptr<Objects> objects, std::string kind);
std::unique_ptr<Objects> open_memory_objects();
Result<std::unique_ptr<Objects>> open_directory_objects(const std::string& path,
                                                        const StoreOptions& options);
Result<std::unique_ptr<Objects>> open_sqlite_objects(const std::string& path,
                                                     const StoreOptions& options);
Result<std::unique_ptr<Objects>> open_postgres_objects(const std::string& url,
                                                       const StoreOptions& options);
Result<std::unique_ptr<Objects>> open_redis_objects(const std::string& url,
                                                    const StoreOptions& options);

}  // namespace tarn::serve
