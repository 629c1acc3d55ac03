#include "runtime/edit_distance.h"

#include <algorithm>
#include <vector>

namespace tarn::runtime {
namespace {

enum class Edit : uint8_t { kNone, kReplace, kDelete, kInsert };

}  // namespace

EditCounts& EditCounts::operator+=(const EditCounts& other) {
  substitutions += other.substitutions;
  insertions += other.insertions;
  deletions += other.deletions;
  reference += other.reference;
  return *this;
}

EditCounts edit_distance(std::span<const int32_t> reference, std::span<const int32_t> hypothesis) {
  const size_t rows = reference.size() + 1, columns = hypothesis.size() + 1;
  std::vector<int64_t> above(columns), row(columns);
  std::vector<Edit> last(rows * columns, Edit::kNone);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      if (i == 0 && j == 0) continue;
      const int64_t none = INT64_MAX;
      const int64_t differs = i > 0 && j > 0 && reference[i - 1] != hypothesis[j - 1] ? 1 : 0;
      const int64_t replaced = i > 0 && j > 0 ? above[j - 1] + differs : none;
      const int64_t deleted = i > 0 ? above[j] + 1 : none;
      const int64_t inserted = j > 0 ? row[j - 1] + 1 : none;
      row[j] = std::min({replaced, deleted, inserted});
      last[i * columns + j] = row[j] == replaced  ? Edit::kReplace
                              : row[j] == deleted ? Edit::kDelete
                                                  : Edit::kInsert;
    }
    std::swap(row, above);
  }
  EditCounts counts;
  counts.reference = static_cast<int64_t>(reference.size());
  size_t i = reference.size(), j = hypothesis.size();
  while (i > 0 || j > 0) {
    switch (last[i * columns + j]) {
      case Edit::kReplace: counts.substitutions += reference[--i] != hypothesis[--j] ? 1 : 0; break;
      case Edit::kDelete:
        ++counts.deletions;
        --i;
        break;
      case Edit::kInsert:
        ++counts.insertions;
        --j;
        break;
      case Edit::kNone: return counts;
    }
  }
  return counts;
}

}  // namespace tarn::runtime
