#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/config.h"
#include "serve/request.h"

namespace tarn::serve::api {

/// A token's name, always valid UTF-8: the character of a byte below 128, "\\xe2" of another byte; in
/// models that are not over bytes the token's number.
std::string token_name(int32_t token, model::Modality modality);

/// What stands under "logprobs" of a choice, as OpenAI's completions or chats have it.
class LogProbs {
 public:
  LogProbs(bool chat, model::Modality modality) : chat_(chat), modality_(modality) {}

  /// A token whose text begins `offset` characters into the choice's.
  void add(const runtime::DrawnLogProbs& token, int64_t offset) {
    tokens_.emplace_back(token, offset);
  }
  bool empty() const { return tokens_.empty(); }
  /// The tokens since the last call; empty lists if there are none.
  Json take();

 private:
  Json of_chat() const;
  Json of_completion() const;
  Json chat_entry(const runtime::TokenLogProb& token) const;

  bool chat_;
  model::Modality modality_;
  /// As JSON they would take twenty times the memory.
  std::vector<std::pair<runtime::DrawnLogProbs, int64_t>> tokens_;
};

}  // namespace tarn::serve::api
