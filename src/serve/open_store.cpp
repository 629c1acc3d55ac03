#include <algorithm>

#include "base/json.h"
#include "serve/session_store.h"
#include "serve/store.h"

namespace tarn::serve {

Result<std::unique_ptr<Objects>> open_objects(const std::string& url, const StoreOptions& options) {
  const size_t colon = url.find(':');
  const std::string scheme = url.substr(0, colon);
  const std::string rest = colon == std::string::npos ? std::string() : url.substr(colon + 1);
  if (colon != std::string::npos) {
    if (scheme == "memory" && rest.empty()) return open_memory_objects();
    if (scheme == "dir") return open_directory_objects(rest, options);
    if (scheme == "sqlite") return open_sqlite_objects(rest, options);
    if (scheme == "postgresql" || scheme == "postgres") return open_postgres_objects(url, options);
    if (scheme == "redis" || scheme == "redis+unix") return open_redis_objects(url, options);
  }
  // Not all of a URL: it may hold a password.
  const std::string got = url.substr(0, std::min(colon, url.find('@')));
  return invalid_argument("got " + json_quote(got + (colon == std::string::npos ? "" : ":…"), 60) +
                              ", wanted memory:, dir:/path, sqlite:/path/file.db, postgresql://… "
                              "or redis://…",
                          "store");
}

const char* durability_name(Durability durability) {
  switch (durability) {
    case Durability::kMemory: return "memory";
    case Durability::kProcess: return "process";
    case Durability::kPower: return "power";
  }
  return "memory";
}

Result<std::unique_ptr<SessionStore>> open_store(const std::string& url,
                                                 const StoreOptions& options) {
  TARN_ASSIGN(std::unique_ptr<Objects> objects, open_objects(url, options));
  return make_session_store(
      watch_objects(std::move(objects), url.substr(0, url.find_first_of(":+"))), options);
}

}  // namespace tarn::serve
