#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "model/config.h"
#include "runtime/sampler.h"

namespace tarn::serve::api {

/// What requests are held to.
struct RequestLimits {
  int64_t choices = 8;        ///< sequences of one request
  int64_t max_tokens = 4096;  ///< that one sequence may draw
};

/// What the parsers know of the server.
struct ModelFacts {
  std::string name;
  const model::ModelConfig& config;
  RequestLimits limits;
};

/// What every turn brings.
struct TurnFields {
  std::string session;  ///< empty: none
  std::optional<int64_t> if_seq;
  runtime::SamplerOptions sampler;
  std::optional<uint64_t> seed;
  std::optional<int64_t> log_probs;  ///< as Request has it
  int64_t n = 1;
  bool stream = false;
  bool include_usage = false;
  std::vector<std::string> stop;
  int64_t max_tokens = 0;
};

struct CompletionRequest : TurnFields {
  bool chat = false;
  bool after_blank_line = false;  ///< see SessionTurn
  bool echo = false;
  std::vector<std::vector<int32_t>> prompts;  ///< one or more
};

struct ImageRequest : TurnFields {
  std::vector<int32_t> prompt;  ///< levels of the pixels that are given
};

// Bodies of requests, checked: types, ranges, UTF-8, parameters nobody knows. An error's `where` is the
// parameter; kUnsupported: one that this server does not have; kNotFound: another model.
Result<CompletionRequest> parse_completion(const Json& body, const ModelFacts& facts);
Result<CompletionRequest> parse_chat(const Json& body, const ModelFacts& facts);
Result<ImageRequest> parse_image(const Json& body, const ModelFacts& facts);

/// Tokens as text: bytes as UTF-8 (what is none becomes U+FFFD), others as numbers between blanks.
std::string text_of_tokens(const std::vector<int32_t>& tokens, model::Modality modality);

}  // namespace tarn::serve::api
