#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "serve/request.h"

namespace tarn::serve {

/// Keeps the log probabilities of drawn tokens until the text is told that the tokens are part of: a
/// character waits for its last token, and text for what could be the end of a stop string.
class HeldLogProbs {
 public:
  /// A token that completed `piece`, whole characters. It is part of the last of them, or, if it
  /// `waits`, of the one that comes next.
  void push(runtime::DrawnLogProbs drawn, std::string_view piece, bool waits);
  /// Those of the next `bytes` of all pieces together, which end behind a character; with `rest` all
  /// others, too. Valid until the next call.
  std::span<const ToldLogProbs> tell(size_t bytes, bool rest);

 private:
  struct Held {
    runtime::DrawnLogProbs drawn;
    size_t begin;  // of its character, in all pieces together
  };
  std::vector<Held> held_;
  std::vector<ToldLogProbs> told_;
  size_t end_ = 0;         // of the pieces
  size_t told_bytes_ = 0;  // of them
};

}  // namespace tarn::serve
