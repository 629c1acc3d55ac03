#include "serve/api/completion_answer.h"

#include <utility>

#include "runtime/utf8.h"
#include "serve/store.h"

namespace tarn::serve::api {

void Outcome::add(const TurnResult& result) {
  ++ended_;
  drawn_ += result.end.tokens_drawn;
  evaluated_ += result.end.tokens_evaluated;
  last_ = result;
}

Json Outcome::usage() const {
  return Json::Object{{"prompt_tokens", prompt_tokens_},
                      {"completion_tokens", drawn_},
                      {"total_tokens", prompt_tokens_ + drawn_}};
}

Json Outcome::image_usage() const {
  return Json::Object{{"input_tokens", prompt_tokens_},
                      {"output_tokens", drawn_},
                      {"total_tokens", prompt_tokens_ + drawn_}};
}

Json Outcome::tarn() const {
  const bool has_session = !session_.empty();
  const Durability durability = last_.saved ? last_.durability : Durability::kMemory;
  Json json;
  json.set("session", has_session ? Json(session_) : Json());
  json.set("seq", has_session ? Json(last_.seq) : Json());
  json.set("saved", last_.saved);
  json.set("tokens_evaluated", evaluated_);
  json.set("token_count", has_session ? Json(last_.end.token_count) : Json());
  json.set("durability", has_session ? Json(durability_name(durability)) : Json());
  json.set("replayed", last_.replayed);
  return json;
}

namespace {

int64_t total_tokens(const std::vector<std::vector<int32_t>>& prompts) {
  int64_t total = 0;
  for (const auto& prompt : prompts) total += static_cast<int64_t>(prompt.size());
  return total;
}

Json tokens_json(const std::vector<int32_t>& tokens) {
  return Json::Array(tokens.begin(), tokens.end());
}

}  // namespace

CompletionAnswer::CompletionAnswer(AnswerHead head, const CompletionRequest& request,
                                   model::Modality modality)
    : head_(std::move(head)),
      chat_(request.chat),
      stream_(request.stream),
      include_usage_(request.include_usage),
      modality_(modality),
      choices_(request.prompts.size() * static_cast<size_t>(request.n)),
      outcome_(request.session, total_tokens(request.prompts)) {
  if (request.log_probs) {
    for (Choice& choice : choices_) choice.log_probs.emplace(chat_, modality_);
  }
  if (!request.echo) return;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const auto& prompt = request.prompts[i / static_cast<size_t>(request.n)];
    choices_[i].text = text_of_tokens(prompt, modality_);
    choices_[i].tokens = prompt;
    choices_[i].told = !prompt.empty();
  }
}

Json CompletionAnswer::head(bool chunk) const {
  const char* object = "text_completion";
  if (chat_) object = chunk ? "chat.completion.chunk" : "chat.completion";
  Json json;
  json.set("id", head_.id);
  json.set("object", object);
  json.set("created", head_.created);
  json.set("model", head_.model);
  json.set("system_fingerprint", head_.fingerprint);
  return json;
}

/// `words` is the delta of a chat, or the text of a completion.
void CompletionAnswer::append_chunk(size_t index, Json words, const Json& finish_reason,
                                    Json tokens, Json log_probs, std::string* out) {
  Json choice;
  choice.set("index", static_cast<int64_t>(index));
  choice.set(chat_ ? "delta" : "text", std::move(words));
  if (!tokens.is_null()) choice.set("tokens", std::move(tokens));
  choice.set("logprobs", std::move(log_probs));
  choice.set("finish_reason", finish_reason);
  Json chunk = head(true);
  chunk.set("choices", Json::Array{std::move(choice)});
  if (include_usage_) chunk.set("usage", nullptr);
  if (!finish_reason.is_null() && outcome_.ended() == choices_.size()) {
    chunk.set("tarn", outcome_.tarn());
  }
  append_event(chunk, out);
}

void CompletionAnswer::begin(std::string* out) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    if (chat_) {
      append_chunk(i, Json::Object{{"role", "assistant"}, {"content", ""}}, {}, {}, {}, out);
    } else if (!choice.tokens.empty()) {
      const bool numbers = modality_ != model::Modality::kBytes;
      append_chunk(i, choice.text, {}, numbers ? tokens_json(choice.tokens) : Json(), {}, out);
    }
  }
}

/// What a token adds to a choice's text.
std::string CompletionAnswer::piece_of(Choice& choice, const TokenEvent& event) const {
  std::string piece(event.text);
  if (modality_ != model::Modality::kBytes) {
    piece = (choice.told ? " " : "") + std::to_string(event.token);
  } else if (chat_ && !choice.told && !piece.empty() && piece.front() == ' ') {
    // The template ends in "Assistant:": the blank behind it is the model's to draw.
    piece.erase(0, 1);
    choice.told = true;
  }
  choice.told = choice.told || !piece.empty();
  return piece;
}

/// `piece` is what piece_of() made of the event.
void CompletionAnswer::add_log_probs(Choice& choice, const TokenEvent& event,
                                     const std::string& piece) const {
  const bool numbers = modality_ != model::Modality::kBytes;
  const size_t left_out = numbers ? 0 : event.text.size() - piece.size();
  for (const ToldLogProbs& told : event.log_probs) {
    if (told.text_at < left_out) continue;
    const std::string_view before =
        numbers ? std::string_view(piece).substr(0, piece.find_first_not_of(' '))
                : event.text.substr(left_out, told.text_at - left_out);
    choice.log_probs->add(told.of, choice.characters + runtime::count_characters(before));
  }
  choice.characters += runtime::count_characters(piece);
}

void CompletionAnswer::token(size_t index, const TokenEvent& event, std::string* out) {
  Choice& choice = choices_[index];
  const std::string piece = piece_of(choice, event);
  if (choice.log_probs) add_log_probs(choice, event, piece);
  const bool numbers = modality_ != model::Modality::kBytes;
  if (!stream_) {
    choice.text += piece;
    if (numbers) choice.tokens.push_back(event.token);
    return;
  }
  // Tokens whose text comes with the next turn have a chunk without any.
  if (piece.empty() && (!choice.log_probs || choice.log_probs->empty())) return;
  append_chunk(index, chat_ ? Json(Json::Object{{"content", piece}}) : Json(piece), {},
               numbers ? tokens_json({event.token}) : Json(),
               choice.log_probs ? choice.log_probs->take() : Json(), out);
}

void CompletionAnswer::choice_end(size_t index, const TurnResult& result, std::string* out) {
  outcome_.add(result);
  choices_[index].finish_reason = finish_reason_name(result.end.reason);
  if (!stream_) return;
  append_chunk(index, chat_ ? Json(Json::Object()) : Json(""), choices_[index].finish_reason, {},
               {}, out);
}

void CompletionAnswer::stream_end(std::string* out) {
  if (include_usage_) {
    Json chunk = head(true);
    chunk.set("choices", Json::Array());
    chunk.set("usage", outcome_.usage());
    chunk.set("tarn", outcome_.tarn());
    append_event(chunk, out);
  }
  *out += "data: [DONE]\n\n";
}

Json CompletionAnswer::body() {
  Json::Array list;
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json json;
    json.set("index", static_cast<int64_t>(i));
    if (chat_) {
      json.set("message", Json::Object{{"role", "assistant"},
                                       {"content", std::move(choice.text)},
                                       {"refusal", nullptr}});
    } else {
      json.set("text", std::move(choice.text));
    }
    if (modality_ != model::Modality::kBytes) json.set("tokens", tokens_json(choice.tokens));
    json.set("logprobs", choice.log_probs ? choice.log_probs->take() : Json());
    json.set("finish_reason", choice.finish_reason);
    list.push_back(std::move(json));
  }
  Json json = head(false);
  json.set("choices", std::move(list));
  json.set("usage", outcome_.usage());
  json.set("tarn", outcome_.tarn());
  return json;
}

}  // namespace tarn::serve::api
