#include "unit/serve/places.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // mkdtemp

#include <filesystem>
#include <utility>

#include "serve/session_store.h"
#include "unit/serve/servers.h"

namespace tarn::serve {
namespace {

/// A folder that goes with its owner.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tarn-store-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Lets several stores share the objects of one memory store.
class SharedObjects final : public Objects {
 public:
  explicit SharedObjects(std::shared_ptr<Objects> objects) : objects_(std::move(objects)) {}
  Result<MaybeValue> get(const std::string& name) override { return objects_->get(name); }
  Result<std::vector<NamedValue>> scan(const std::string& prefix, const std::string& after,
                                       int limit) override {
    return objects_->scan(prefix, after, limit);
  }
  Status update(const Planner& planner) override { return objects_->update(planner); }
  Durability durability() const override { return objects_->durability(); }

 private:
  std::shared_ptr<Objects> objects_;
};

class MemoryPlace final : public Place {
 public:
  Result<std::unique_ptr<Objects>> objects(const StoreOptions&) override {
    return std::unique_ptr<Objects>(std::make_unique<SharedObjects>(objects_));
  }
  bool outlives_process() const override { return false; }
  Durability durability(const StoreOptions&) const override { return Durability::kMemory; }

 private:
  std::shared_ptr<Objects> objects_ = open_memory_objects();
};

class FilePlace final : public Place {
 public:
  FilePlace(const std::string& scheme, const std::string& name)
      : url_(scheme + ":" + folder_.path() + "/" + name) {}
  Result<std::unique_ptr<Objects>> objects(const StoreOptions& options) override {
    return open_objects(url_, options);
  }

 private:
  ScratchFolder folder_;
  std::string url_;
};

std::unique_ptr<Place> make_memory(std::string*) { return std::make_unique<MemoryPlace>(); }
std::unique_ptr<Place> make_directory(std::string*) {
  return std::make_unique<FilePlace>("dir", "sessions");
}
std::unique_ptr<Place> make_sqlite(std::string*) {
  return std::make_unique<FilePlace>("sqlite", "sessions.db");
}

}  // namespace

std::unique_ptr<SessionStore> Place::store(const StoreOptions& options) {
  Result<std::unique_ptr<Objects>> opened = objects(options);
  if (!opened.ok()) {
    ADD_FAILURE() << opened.error().to_string();
    std::abort();
  }
  auto store = make_session_store(std::move(*opened), options);
  if (!store.ok()) std::abort();
  return std::move(*store);
}

const std::vector<PlaceKind>& place_kinds() {
  static const std::vector<PlaceKind> kinds = {
      {"memory", make_memory}, {"directory", make_directory}, {"sqlite", make_sqlite}};
  return kinds;
}

const std::vector<PlaceKind>& server_kinds() {
  static const std::vector<PlaceKind> kinds = {{"postgres", make_postgres}, {"redis", make_redis}};
  return kinds;
}

std::string noise(size_t bytes, uint64_t seed) {
  std::string text(bytes, '\0');
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (char& c : text) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    c = static_cast<char>(state >> 32);
  }
  return text;
}

}  // namespace tarn::serve
