#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tarn::serve::load {

/// What a right answer to a streamed completion says.
struct Expected {
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  bool counts_bytes = false;        ///< a token is a byte of text, so the text can be counted
  bool in_session = false;          ///< the first or the last character may belong to another turn
  std::optional<int64_t> seq = {};  ///< that the session has afterwards
};

/// Holds the events of one streamed completion against what was asked for: chunks of JSON, one end
/// with a reason, a usage that agrees with the tokens that came, the session's number, "[DONE]" as
/// the last.
class CompletionCheck {
 public:
  explicit CompletionCheck(const Expected& expected) : expected_(expected) {}

  /// True when it brought text or tokens.
  bool event(std::string_view data);
  /// After the last event: what is wrong first, or "".
  std::string verdict() const;

  int64_t completion_tokens() const { return completion_tokens_; }
  /// Of text, tokens and finish reason: equal answers have equal hashes.
  uint64_t hash() const;

 private:
  bool choice(const Json& choice);
  void usage(const Json& usage);
  void tarn(const Json& tarn);
  std::string count_problem() const;
  void problem(std::string what);

  Expected expected_;
  std::string text_;
  std::string listed_;  // the token numbers that came, as bytes
  std::string finish_reason_;
  int64_t pieces_ = 0;  // events with text or tokens
  int64_t listed_tokens_ = 0;
  int64_t prompt_tokens_ = -1;
  int64_t completion_tokens_ = -1;
  std::optional<int64_t> seq_;
  bool done_ = false;
  std::string problem_;
};

}  // namespace tarn::serve::load
