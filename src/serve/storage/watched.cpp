#include <atomic>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "serve/storage/objects.h"

namespace tarn::serve {
namespace {

/// Objects that tell the log when their place begins to fail and when it is back.
class WatchedObjects final : public Objects {
 public:
  WatchedObjects(std::unique_ptr<Objects> objects, std::string kind)
      : objects_(std::move(objects)), name_("the " + std::move(kind) + " store") {}

  Result<MaybeValue> get(const std::string& name) override {
    Result<MaybeValue> value = objects_->get(name);
    note(value.ok() ? nullptr : &value.error(), false);
    return value;
  }
  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    Result<std::vector<NamedValue>> rows = objects_->scan(prefix, after, limit);
    note(rows.ok() ? nullptr : &rows.error(), false);
    return rows;
  }
  Status update(const Planner& planner) override {
    Status status = objects_->update(planner);
    note(status.ok() ? nullptr : &status.error(), true);
    return status;
  }

  StoreState state() const override {
    StoreState state = objects_->state();
    if (state.read_only || !failing_) return state;
    const std::lock_guard lock(mutex_);
    state.failing = true;
    state.reason = reason_;
    return state;
  }
  Durability durability() const override { return objects_->durability(); }
  bool left_over() const override { return objects_->left_over(); }

 private:
  void note(const Error* error, bool is_write) {
    const bool fails = error != nullptr && (error->code == ErrorCode::kIo ||
                                            (is_write && error->code == ErrorCode::kReadOnly));
    if (!fails && !failing_) return;
    // A place that takes no more writes still answers reads: it is not back.
    if (!fails && objects_->state().read_only) return;
    const std::lock_guard lock(mutex_);
    if (is_write && (fails || error == nullptr)) write_failed_ = fails;
    if (!fails && write_failed_) return;
    if (fails) reason_ = name_ + " fails: " + error->message;
    if (failing_.exchange(fails) == fails) return;
    log_message(LogLevel::kWarning, fails ? reason_ : name_ + " is back");
  }

  const std::unique_ptr<Objects> objects_;
  const std::string name_;
  std::atomic<bool> failing_{false};
  bool write_failed_ = false;
  mutable std::mutex mutex_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Objects> watch_objects(std::unique_ptr<Objects> objects, std::string kind) {
  return std::make_unique<WatchedObjects>(std::move(objects), std::move(kind));
}

}  // namespace tarn::serve
