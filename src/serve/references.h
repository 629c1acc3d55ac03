#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/record.h"
#include "serve/storage/objects.h"

namespace tarn::serve {

std::string head_name(std::string_view id);
std::string record_name(const ObjectName& name);
std::string chunk_name(const ObjectName& name);

/// Whether `name` is one that `content` may be stored under.
bool is_named(std::string_view content, const ObjectName& name);

/// Collects what one plan takes and drops of the immutable objects: records and chunks, named by
/// their content and counted. An object with one reference has no count; more are in "n/…".
class References {
 public:
  explicit References(PlanReader& reader) : reader_(&reader) {}

  /// One reference more to the payload's chunk with this content, stored unless it is there.
  Result<ObjectName> add_chunk(std::string_view content);
  /// The same for a record.
  Result<ObjectName> add_record(std::string_view content);
  /// One reference more to a record that a head refers to.
  void retain_record(const ObjectName& name);
  /// One reference fewer; with the last one goes the record, and its references to chunks.
  void release_record(const HeadVersion& version);

  /// Adds the changes to `plan`: new objects and higher counts before its commit, the rest after.
  Status finish(Plan* plan);

 private:
  struct Use {
    int64_t delta = 0;
    bool chunked = false;                  ///< a record whose chunks go with it
    std::optional<std::string> content{};  ///< of an object that is not stored yet
  };
  Result<ObjectName> add(char kind, std::string_view content);
  Status settle(const std::string& name, const Use& use, Plan* plan);
  Status release_chunks(const std::string& record);

  PlanReader* reader_;
  std::map<std::string, Use> uses_;  // by object name
};

/// Changes that remove every object nothing refers to and set every count right.
Result<Plan> plan_collection(PlanReader& reader);

}  // namespace tarn::serve
