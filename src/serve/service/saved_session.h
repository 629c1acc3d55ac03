#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/request.h"

namespace tarn::serve {

/// When a session's turns are saved.
enum class SavePolicy : uint8_t {
  kTurn,    ///< each one, before its end is told
  kManual,  ///< by save(), pause(), fork(), a drain, and when the session leaves the memory
};

/// XXH3-128 of what makes two requests the same.
using RequestHash = std::array<uint8_t, 16>;
/// Of prompt, sampler, seed, stop strings, max_tokens and log_probs.
RequestHash hash_request(const Request& request);

/// Longest idempotency key.
inline constexpr size_t kMaxKeyBytes = 128;
/// 1 to kMaxKeyBytes printable ASCII characters.
bool is_idempotency_key(std::string_view key);

/// Line breaks that end a text with a blank line.
inline constexpr int kBlankLineBreaks = 2;

/// What a turn with an idempotency key answered: enough to answer it again.
struct KeyedResult {
  std::string key;
  RequestHash request{};
  int64_t ended_ms = 0;                         ///< milliseconds since 1970
  int64_t seq = 0;                              ///< the version that the turn made
  FinishReason reason = FinishReason::kLength;  ///< kStop or kLength
  int64_t stop_string = -1;
  int64_t tokens_evaluated = 0;
  int64_t token_count = 0;           ///< of the session after the turn
  std::vector<int32_t> tokens;       ///< that were drawn
  std::vector<uint32_t> text_bytes;  ///< of each token's text
  std::string text;                  ///< of all tokens
  /// If it had log probabilities: how many were told with each token, and those of the first tokens, in
  /// their order.
  std::vector<uint32_t> log_prob_counts;
  std::vector<ToldLogProbs> log_probs;
};

/// The payload of a session's version: its snapshot and what the service remembers beside it.
/// Format: docs/formats/session.md.
struct SavedSession {
  std::string id;  ///< of the session that wrote it; a fork's first version has its source's
  SavePolicy policy = SavePolicy::kTurn;
  /// Line breaks that the session's text lacks to end with a blank line, at most kBlankLineBreaks;
  /// 0 also for models that are not over text.
  int missing_breaks = 0;
  std::vector<KeyedResult> results;  ///< the oldest first, no key twice
  std::string_view snapshot;         ///< points into the parsed bytes
};

std::string encode_saved_session(const SavedSession& session);
/// Checks everything but the snapshot's inside. Pure; allocates no more than a small multiple of
/// bytes.size(). Errors: kCorrupt; kUnsupported, another version or byte order.
Result<SavedSession> parse_saved_session(std::string_view bytes, const std::string& where);

}  // namespace tarn::serve
