#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tarn::cli {

/// Labels as text, piece by piece: names that all are single characters one after another, others (words,
/// phones) with a space between; numbers for labels without a name.
class Speller {
 public:
  /// `symbols` outlives the speller.
  explicit Speller(const std::vector<std::string>& symbols);
  /// The text of the next labels. Pieces one after another are the text of all labels.
  std::string spell(std::span<const int32_t> labels);

 private:
  const std::vector<std::string>& symbols_;
  bool spaced_;
  bool first_ = true;
};

}  // namespace tarn::cli
