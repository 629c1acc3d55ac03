#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "serve/storage/objects.h"

namespace tarn::serve {
namespace {

/// A sorted map under a lock: the store of tests, and of servers that keep nothing.
class MemoryObjects final : public Objects {
 public:
  Result<MaybeValue> get(const std::string& name) override {
    const std::shared_lock lock(mutex_);
    return find(name);
  }

  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    const std::shared_lock lock(mutex_);
    std::vector<NamedValue> rows;
    for (auto at = values_.upper_bound(std::max(prefix, after));
         at != values_.end() && at->first.starts_with(prefix) &&
         rows.size() < static_cast<size_t>(limit);
         ++at) {
      rows.push_back(*at);
    }
    return rows;
  }

  Status update(const Planner& planner) override {
    const std::unique_lock lock(mutex_);
    Reader reader(*this);
    TARN_ASSIGN(Plan plan, planner(reader));
    for (Change& change : plan.before) apply(std::move(change));
    if (plan.commit) apply(std::move(*plan.commit));
    for (Change& change : plan.after) apply(std::move(change));
    return {};
  }

  Durability durability() const override { return Durability::kMemory; }

 private:
  class Reader final : public PlanReader {
   public:
    explicit Reader(const MemoryObjects& objects) : objects_(&objects) {}
    Result<MaybeValue> get(const std::string& name) override { return objects_->find(name); }
    Result<std::vector<std::string>> names(const std::string& prefix) override {
      std::vector<std::string> names;
      for (auto at = objects_->values_.lower_bound(prefix);
           at != objects_->values_.end() && at->first.starts_with(prefix); ++at) {
        names.push_back(at->first);
      }
      return names;
    }

   private:
    const MemoryObjects* objects_;
  };

  MaybeValue find(const std::string& name) const {
    const auto at = values_.find(name);
    return at == values_.end() ? MaybeValue() : MaybeValue(at->second);
  }

  void apply(Change change) {
    if (change.value) {
      values_.insert_or_assign(std::move(change.name), std::move(*change.value));
    } else {
      values_.erase(change.name);
    }
  }

  mutable std::shared_mutex mutex_;
  std::map<std::string, std::string> values_;
};

}  // namespace

std::unique_ptr<Objects> open_memory_objects() { return std::make_unique<MemoryObjects>(); }

}  // namespace tarn::serve
