#include "base/arena.h"

#include <algorithm>

namespace tarn {

char* Arena::alloc_bytes(int64_t bytes) {
  constexpr int64_t kAlign = static_cast<int64_t>(kAlignment);
  constexpr int64_t kMinBlock = int64_t{1} << 16;
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  while (block_ < blocks_.size() && offset_ + rounded > blocks_[block_].size()) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) {
    const int64_t grown = blocks_.empty() ? kMinBlock : blocks_.back().size() * 2;
    blocks_.emplace_back(std::max(rounded, std::min<int64_t>(grown, int64_t{1} << 26)));
    offset_ = 0;
  }
  char* result = blocks_[block_].data() + offset_;
  offset_ += rounded;
  return result;
}

int64_t Arena::capacity_bytes() const {
  int64_t total = 0;
  for (const auto& block : blocks_) total += block.size();
  return total;
}

}  // namespace tarn
