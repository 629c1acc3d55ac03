#pragma once

#include <cstdint>
#include <span>

namespace tarn::runtime {

/// How a recognised sequence differs from what was said.
struct EditCounts {
  int64_t substitutions = 0;
  int64_t insertions = 0;  ///< recognised, not said
  int64_t deletions = 0;   ///< said, not recognised
  int64_t reference = 0;   ///< symbols that were said

  int64_t errors() const { return substitutions + insertions + deletions; }
  /// Errors per symbol that was said; 0 if none was.
  double rate() const {
    return reference == 0 ? 0.0 : static_cast<double>(errors()) / static_cast<double>(reference);
  }
  EditCounts& operator+=(const EditCounts& other);
};

/// The smallest number of edits that turns `reference` into `hypothesis` (Levenshtein 1966); of equal
/// ways the one that, from the end, prefers a match or substitution, then a deletion. Cost: the product
/// of the lengths, in time and in bytes.
EditCounts edit_distance(std::span<const int32_t> reference, std::span<const int32_t> hypothesis);

}  // namespace tarn::runtime
