#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/storage/objects.h"
#include "serve/store.h"

namespace tarn::serve {

/// Somewhere a store can be, empty at first; several stores may be opened on it.
class Place {
 public:
  virtual ~Place() = default;
  virtual Result<std::unique_ptr<Objects>> objects(const StoreOptions& options) = 0;
  /// Whether another process can open it, and finds there what was saved before.
  virtual bool outlives_process() const { return true; }
  /// Ends and starts the server behind it, without a farewell; false: there is none.
  virtual bool restart() { return false; }
  /// Stops the server behind it, which keeps its connections and answers nothing, or lets it go on;
  /// false: there is none.
  virtual bool freeze(bool /*frozen*/) { return false; }
  /// What saves must promise under these options.
  virtual Durability durability(const StoreOptions& options) const {
    return options.sync ? Durability::kPower : Durability::kProcess;
  }

  std::unique_ptr<SessionStore> store(const StoreOptions& options = {});
};

/// A kind of place that tests run on.
struct PlaceKind {
  const char* name;
  /// A fresh place, or none and why: what the kind needs is not on this machine.
  std::unique_ptr<Place> (*make)(std::string* why_not);
};
const std::vector<PlaceKind>& place_kinds();
/// Kinds that need a database server, which is started at the first place: slow for one test alone.
const std::vector<PlaceKind>& server_kinds();

/// A clock that stands still until a test moves it.
class TestClock {
 public:
  int64_t now() const { return now_; }
  void advance(int64_t ms) { now_ += ms; }

 private:
  std::atomic<int64_t> now_{1'700'000'000'000};
};

/// Pseudo-random bytes that depend on the seed alone.
std::string noise(size_t bytes, uint64_t seed);

}  // namespace tarn::serve
