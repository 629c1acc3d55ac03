#include "serve/load/completion_check.h"

#include <fmt/format.h>

#include "base/checksum.h"

namespace tarn::serve::load {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // stands for one to three bytes
constexpr int64_t kCharacterBytes = 4;

int64_t integer(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  const int64_t* number = value == nullptr ? nullptr : value->as_int();
  return number == nullptr ? -1 : *number;
}

int64_t replacements(std::string_view text) {
  int64_t count = 0;
  for (size_t at = text.find(kReplacement); at != std::string_view::npos;
       at = text.find(kReplacement, at + kReplacement.size())) {
    ++count;
  }
  return count;
}

}  // namespace

bool CompletionCheck::event(std::string_view data) {
  if (done_) problem("an event behind [DONE]");
  if (data == "[DONE]") {
    done_ = true;
    return false;
  }
  const auto json = parse_json(data, "event");
  if (!json.ok()) {
    problem(json.error().to_string());
    return false;
  }
  if (const Json* error = json->find("error")) problem("an error in the stream: " + error->dump());
  if (const Json* told = json->find("usage"); told != nullptr && !told->is_null()) usage(*told);
  if (const Json* told = json->find("tarn")) tarn(*told);
  const Json* choices = json->find("choices");
  if (choices == nullptr || choices->as_array() == nullptr) return false;
  bool brought = false;
  for (const Json& one : *choices->as_array()) brought = choice(one) || brought;
  if (brought) ++pieces_;
  return brought;
}

bool CompletionCheck::choice(const Json& choice) {
  bool brought = false;
  if (const Json* text = choice.find("text"); text != nullptr && text->as_string() != nullptr) {
    text_ += *text->as_string();
    brought = !text->as_string()->empty();
  }
  if (const Json* tokens = choice.find("tokens"); tokens != nullptr && tokens->as_array()) {
    for (const Json& token : *tokens->as_array()) listed_ += token.dump() + ",";
    listed_tokens_ += std::ssize(*tokens->as_array());
    brought = brought || !tokens->as_array()->empty();
  }
  if (brought && !finish_reason_.empty()) problem("text behind the finish_reason");
  const Json* reason = choice.find("finish_reason");
  if (reason != nullptr && reason->as_string() != nullptr) {
    if (!finish_reason_.empty()) problem("two finish_reasons");
    finish_reason_ = *reason->as_string();
  }
  return brought;
}

void CompletionCheck::usage(const Json& usage) {
  prompt_tokens_ = integer(usage, "prompt_tokens");
  completion_tokens_ = integer(usage, "completion_tokens");
  const int64_t total = integer(usage, "total_tokens");
  if (total != prompt_tokens_ + completion_tokens_) {
    problem(fmt::format("usage: {} tokens in all, {} and {} of its parts", total, prompt_tokens_,
                        completion_tokens_));
  }
}

void CompletionCheck::tarn(const Json& tarn) {
  const int64_t seq = integer(tarn, "seq");
  if (seq >= 0) seq_ = seq;
}

std::string CompletionCheck::count_problem() const {
  const int64_t told = completion_tokens_;
  if (prompt_tokens_ != expected_.prompt_tokens) {
    return fmt::format("usage: {} tokens of the prompt, wanted {}", prompt_tokens_,
                       expected_.prompt_tokens);
  }
  const bool is_full = told == expected_.max_tokens;
  if (told > expected_.max_tokens || (finish_reason_ == "length" && !is_full)) {
    return fmt::format("{} tokens drawn, wanted {}", told, expected_.max_tokens);
  }
  if (pieces_ > told) return fmt::format("{} pieces of {} tokens came", pieces_, told);
  if (listed_tokens_ > 0 && listed_tokens_ != told) {
    return fmt::format("usage: {} tokens drawn, {} came", told, listed_tokens_);
  }
  if (!expected_.counts_bytes || listed_tokens_ > 0) return {};
  const int64_t lost = replacements(text_);
  const int64_t plain = std::ssize(text_) - lost * std::ssize(kReplacement);
  const int64_t slack = expected_.in_session ? kCharacterBytes - 1 : 0;
  if (told + slack < plain + lost || told - slack > plain + std::ssize(kReplacement) * lost) {
    return fmt::format("usage: {} bytes drawn, {} came and {} that are no UTF-8", told, plain,
                       lost);
  }
  return {};
}

std::string CompletionCheck::verdict() const {
  if (!problem_.empty()) return problem_;
  if (!done_) return "the stream ended without [DONE]";
  if (finish_reason_.empty()) return "no finish_reason";
  if (completion_tokens_ < 0) return "no usage";
  if (std::string counts = count_problem(); !counts.empty()) return counts;
  if (expected_.seq && seq_ != expected_.seq) {
    return fmt::format("the session is at seq {}, wanted {}", seq_.value_or(-1), *expected_.seq);
  }
  return {};
}

uint64_t CompletionCheck::hash() const {
  Xxh3 hash;
  for (const std::string* part : {&text_, &listed_, &finish_reason_}) {
    const int64_t size = std::ssize(*part);
    hash.update(&size, sizeof size);
    hash.update(part->data(), size);
  }
  return hash.digest();
}

void CompletionCheck::problem(std::string what) {
  if (problem_.empty()) problem_ = std::move(what);
}

}  // namespace tarn::serve::load
