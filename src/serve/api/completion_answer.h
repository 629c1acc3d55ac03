#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "serve/api/log_probs.h"
#include "serve/api/requests.h"
#include "serve/api/turn_group.h"

namespace tarn::serve::api {

/// Counts and outcome of a request's turns, as answers report them.
class Outcome {
 public:
  Outcome(std::string session, int64_t prompt_tokens)
      : session_(std::move(session)), prompt_tokens_(prompt_tokens) {}

  void add(const TurnResult& result);
  size_t ended() const { return ended_; }
  /// {prompt_tokens, completion_tokens, total_tokens}
  Json usage() const;
  /// {input_tokens, output_tokens, total_tokens}
  Json image_usage() const;
  /// The object "tarn": {session, seq, saved, tokens_evaluated, token_count, durability,
  /// replayed}.
  Json tarn() const;

 private:
  std::string session_;
  int64_t prompt_tokens_;
  int64_t drawn_ = 0;
  int64_t evaluated_ = 0;
  size_t ended_ = 0;
  TurnResult last_;
};

/// What all objects of one answer carry.
struct AnswerHead {
  std::string id;
  int64_t created = 0;  ///< seconds since 1970
  std::string model;
  std::string fingerprint;
};

/// OpenAI's completions and chat completions, whole or as chunks.
class CompletionAnswer : public Answer {
 public:
  CompletionAnswer(AnswerHead head, const CompletionRequest& request, model::Modality modality);

  void begin(std::string* out) override;
  void token(size_t choice, const TokenEvent& event, std::string* out) override;
  void choice_end(size_t choice, const TurnResult& result, std::string* out) override;
  void stream_end(std::string* out) override;
  Json body() override;

 private:
  struct Choice {
    std::string text;  // of a whole answer, or of the chunk that comes next
    std::vector<int32_t> tokens;
    Json finish_reason;
    bool told = false;                    // has begun
    std::optional<LogProbs> log_probs{};  // that are not told yet; none if nobody asked
    int64_t characters = 0;               // of the text so far, if somebody did
  };
  std::string piece_of(Choice& choice, const TokenEvent& event) const;
  void add_log_probs(Choice& choice, const TokenEvent& event, const std::string& piece) const;
  Json head(bool chunk) const;
  void append_chunk(size_t index, Json delta_or_text, const Json& finish_reason, Json tokens,
                    Json log_probs, std::string* out);

  const AnswerHead head_;
  const bool chat_, stream_, include_usage_;
  const model::Modality modality_;
  std::vector<Choice> choices_;
  Outcome outcome_;
};

}  // namespace tarn::serve::api
