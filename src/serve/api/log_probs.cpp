#include "serve/api/log_probs.h"

#include <fmt/format.h>

#include <utility>

namespace tarn::serve::api {

std::string token_name(int32_t token, model::Modality modality) {
  if (modality != model::Modality::kBytes || token > 255) return std::to_string(token);
  if (token < 128) return {static_cast<char>(token)};
  return fmt::format("\\x{:02x}", token);
}

Json LogProbs::take() {
  Json json = chat_ ? of_chat() : of_completion();
  tokens_.clear();
  return json;
}

Json LogProbs::chat_entry(const runtime::TokenLogProb& token) const {
  const bool is_byte = modality_ == model::Modality::kBytes;
  return Json::Object{{"token", token_name(token.token, modality_)},
                      {"logprob", token.log_prob},
                      {"bytes", is_byte ? Json(Json::Array{token.token}) : Json()}};
}

Json LogProbs::of_chat() const {
  Json::Array content;
  for (const auto& [token, offset] : tokens_) {
    Json::Array likeliest;
    for (const auto& other : token.likeliest) likeliest.push_back(chat_entry(other));
    Json entry = chat_entry(token.drawn);
    entry.set("top_logprobs", std::move(likeliest));
    content.push_back(std::move(entry));
  }
  return Json::Object{{"content", std::move(content)}, {"refusal", nullptr}};
}

Json LogProbs::of_completion() const {
  Json::Array names, log_probs, tops, offsets;
  for (const auto& [token, offset] : tokens_) {
    const std::string name = token_name(token.drawn.token, modality_);
    Json top = Json::Object();
    for (const auto& [other, log_prob] : token.likeliest) {
      top.set(token_name(other, modality_), log_prob);
    }
    top.set(name, token.drawn.log_prob);
    names.emplace_back(name);
    log_probs.emplace_back(token.drawn.log_prob);
    tops.push_back(std::move(top));
    offsets.emplace_back(offset);
  }
  return Json::Object{{"tokens", std::move(names)},
                      {"token_logprobs", std::move(log_probs)},
                      {"top_logprobs", std::move(tops)},
                      {"text_offset", std::move(offsets)}};
}

}  // namespace tarn::serve::api
