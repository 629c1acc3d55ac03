#include "serve/held_log_probs.h"

#include <utility>

#include "runtime/utf8.h"

namespace tarn::serve {

void HeldLogProbs::push(runtime::DrawnLogProbs drawn, std::string_view piece, bool waits) {
  size_t last = piece.size();
  if (!waits && last > 0) {
    do --last;
    while (last > 0 && !runtime::begins_character(piece[last]));
  }
  held_.push_back({std::move(drawn), end_ + last});
  end_ += piece.size();
}

std::span<const ToldLogProbs> HeldLogProbs::tell(size_t bytes, bool rest) {
  told_.clear();
  for (Held& next : held_) {
    if (!rest && next.begin >= told_bytes_ + bytes) break;
    told_.push_back({std::move(next.drawn), static_cast<uint32_t>(next.begin - told_bytes_)});
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<int64_t>(told_.size()));
  told_bytes_ += bytes;
  return told_;
}

}  // namespace tarn::serve
