#include "serve/api/requests.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "report/image.h"
#include "runtime/utf8.h"
#include "serve/api/base64.h"
#include "serve/api/chat_template.h"
#include "serve/api/fields.h"
#include "serve/request.h"
#include "serve/stop_strings.h"
#include "serve/store.h"

namespace tarn::serve::api {
namespace {

constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default
constexpr int64_t kChatTokens = 1024;
/// Temperatures between 0, which is greedy, and this one are refused: logits would leave the range
/// in which they differ.
constexpr double kMinTemperature = 1e-3;
constexpr double kMaxTemperature = 100;
constexpr double kMinTopP = 1e-6;
constexpr int64_t kMaxLogProbValues = int64_t{1} << 18;

constexpr const char* kHarmless[] = {"user",
                                     "metadata",
                                     "store",
                                     "service_tier",
                                     "safety_identifier",
                                     "prompt_cache_key",
                                     "prompt_cache_retention",
                                     "prediction",
                                     "parallel_tool_calls"};

const Unsupported kUnsupported[] = {
    {"frequency_penalty", {"0"}},
    {"presence_penalty", {"0"}},
    {"logit_bias", {"{}"}},
    {"min_p", {"0"}},
    {"repetition_penalty", {"1"}},
    {"min_tokens", {"0"}},
    {"ignore_eos", {"false"}},
    {"stop_token_ids", {"[]"}},
    {"guided_json", {}},
    {"guided_regex", {}},
    {"grammar", {}},
};
const Unsupported kCompletionUnsupported[] = {
    {"best_of", {"1"}}, {"suffix", {"\"\""}}, {"top_logprobs", {"0"}}, {"messages", {}}};
const Unsupported kChatUnsupported[] = {
    {"tools", {"[]"}},
    {"tool_choice", {"\"none\"", "\"auto\""}},
    {"functions", {"[]"}},
    {"function_call", {"\"none\"", "\"auto\""}},
    {"response_format", {"{\"type\":\"text\"}"}},
    {"audio", {}},
    {"modalities", {"[\"text\"]"}},
    {"reasoning_effort", {"\"none\""}},
    {"verbosity", {}},
    {"web_search_options", {}},
    {"chat_template", {}},
    {"chat_template_kwargs", {"{}"}},
    {"prompt", {}},
    {"echo", {"false"}},
};
const Unsupported kImageUnsupported[] = {
    {"prompt", {"\"\""}},
    {"response_format", {"\"b64_json\""}},
    {"output_format", {"\"png\""}},
    {"output_compression", {"100"}},
    {"background", {"\"auto\"", "\"opaque\""}},
    {"quality", {"\"auto\"", "\"standard\""}},
    {"style", {}},
    {"partial_images", {"0"}},
    {"stream_options", {}},
    {"stop", {"[]"}},
    {"logprobs", {"false"}},
    {"top_logprobs", {"0"}},
    {"max_tokens", {}},
};

/// Strings in `stop`: one, or a list.
Status read_stop(JsonReader& reader, size_t most, std::vector<std::string>* stop) {
  const Json* value = reader.optional("stop");
  if (value == nullptr) return {};
  if (const std::string* one = value->as_string()) {
    stop->push_back(*one);
  } else if (const Json::Array* list = value->as_array()) {
    for (const Json& item : *list) {
      if (item.as_string() == nullptr) {
        return invalid_argument(std::string("must be strings, got ") + item.type_name(), "stop");
      }
      stop->push_back(*item.as_string());
    }
  } else {
    return invalid_argument(
        std::string("must be a string or a list of strings, got ") + value->type_name(), "stop");
  }
  if (stop->size() > most) {
    return invalid_argument("has " + std::to_string(stop->size()) + " strings, at most " +
                                std::to_string(most) + " are taken here",
                            "stop");
  }
  const Status valid = validate_stop_strings(*stop);
  return valid.ok() ? valid : Status(invalid_argument(valid.error().message, "stop"));
}

/// A number that is 0 or from `low` to `high`; `range` says so. Absent: 1.
double read_zero_or(JsonReader& reader, const char* key, double low, double high,
                    const char* range) {
  const Json* value = reader.optional(key);
  if (value == nullptr) return 1;
  double number = std::nan("");
  if (const int64_t* integer = value->as_int()) number = static_cast<double>(*integer);
  if (const double* real = value->as_double()) number = *real;
  if (number == 0 || (number >= low && number <= high)) return number;
  reader.fail(key, std::string("must be 0 (always the likeliest) or a number ") + range + ", got " +
                       (std::isnan(number) ? value->type_name() : value->dump()));
  return 1;
}

Status read_sampler(JsonReader& reader, runtime::SamplerOptions* sampler) {
  const double temperature =
      read_zero_or(reader, "temperature", kMinTemperature, kMaxTemperature, "from 0.001 to 100");
  const double top_p = read_zero_or(reader, "top_p", kMinTopP, 1, "from 0.000001 to 1");
  sampler->top_k = reader.integer("top_k", 0, 1'000'000, 0);
  sampler->greedy = temperature == 0 || top_p == 0;
  if (sampler->greedy) return {};
  sampler->temperature = static_cast<float>(temperature);
  sampler->top_p = static_cast<float>(top_p);
  return runtime::validate(*sampler);
}

Status read_model(JsonReader& reader, const std::string& served) {
  const std::string name = reader.string("model", served);
  const Json* given = reader.optional("model");
  // Of another type: the reader has noted it.
  if (name == served || (given != nullptr && given->as_string() == nullptr)) return {};
  return Error{ErrorCode::kNotFound,
               "got " + json_quote(name, 60) + ", this server has " + json_quote(served), "model"};
}

Status read_session(JsonReader& reader, TurnFields* fields) {
  fields->session = reader.string("session", "");
  if (reader.optional("session") != nullptr && !is_session_id(fields->session)) {
    reader.fail("session", "is no session id: wanted 1 to 64 of the characters A-Z a-z 0-9 _ -");
  }
  fields->if_seq = optional_integer(reader, "if_seq", 0, kInt64Max);
  if (fields->if_seq && fields->session.empty())
    return invalid_argument("needs a session", "if_seq");
  return {};
}

/// What all three kinds of request have.
Status read_turn(JsonReader& reader, const ModelFacts& facts, TurnFields* fields) {
  TARN_RETURN_IF_ERROR(read_model(reader, facts.name));
  TARN_RETURN_IF_ERROR(read_session(reader, fields));
  TARN_RETURN_IF_ERROR(read_sampler(reader, &fields->sampler));
  if (const auto seed = optional_integer(reader, "seed", kInt64Min, kInt64Max)) {
    fields->seed = static_cast<uint64_t>(*seed);
  }
  fields->n = reader.integer("n", 1, facts.limits.choices, 1);
  fields->stream = reader.boolean("stream", false);
  if (fields->n > 1 && !fields->session.empty()) {
    return invalid_argument("must be 1 with a session", "n");
  }
  accept_harmless(reader, kHarmless);
  return {};
}

Status read_stream_options(JsonReader& reader, TurnFields* fields) {
  const Json* options = reader.optional("stream_options");
  if (options == nullptr) return {};
  if (!fields->stream) return invalid_argument("needs \"stream\": true", "stream_options");
  JsonReader inner(*options, "stream_options");
  fields->include_usage = inner.boolean("include_usage", false);
  inner.boolean("include_obfuscation", false);
  return inner.finish();
}

/// Bounds what an answer takes in memory, and a result that is kept for a retry.
Status check_log_probs(const CompletionRequest& request) {
  if (!request.log_probs) return {};
  const int64_t sequences = static_cast<int64_t>(request.prompts.size()) * request.n;
  const int64_t values = sequences * request.max_tokens * (1 + *request.log_probs);
  if (values <= kMaxLogProbValues) return {};
  return invalid_argument("is " + std::to_string(request.max_tokens) + ": with " +
                              std::to_string(1 + *request.log_probs) +
                              " log probabilities for each token of " + std::to_string(sequences) +
                              " sequences there could be " + std::to_string(values) + ", at most " +
                              std::to_string(kMaxLogProbValues) + " are told",
                          "max_tokens");
}

/// Of chats: whether there are log probabilities, and of how many tokens beside the drawn one.
Status read_chat_log_probs(JsonReader& reader, TurnFields* fields) {
  const bool wanted = reader.boolean("logprobs", false);
  const int64_t likeliest = reader.integer("top_logprobs", 0, kMaxLogProbs, 0);
  if (wanted) fields->log_probs = likeliest;
  if (wanted || likeliest == 0) return {};
  return invalid_argument("needs \"logprobs\": true", "top_logprobs");
}

Error wrong_modality(const char* wanted, const char* where) {
  return {ErrorCode::kUnsupported, std::string("needs a model over ") + wanted, where};
}

Result<std::vector<int32_t>> tokens_of_numbers(const Json::Array& numbers, int64_t vocabulary,
                                               const std::string& where) {
  std::vector<int32_t> tokens;
  tokens.reserve(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t* token = numbers[i].as_int();
    if (token == nullptr || *token < 0 || *token >= vocabulary) {
      return invalid_argument("token " + std::to_string(i) + " is " +
                                  (token ? std::to_string(*token) : numbers[i].type_name()) +
                                  ", must be an integer from 0 to " +
                                  std::to_string(vocabulary - 1),
                              where);
    }
    tokens.push_back(static_cast<int32_t>(*token));
  }
  return tokens;
}

Result<std::vector<int32_t>> tokens_of_text(const std::string& text, model::Modality modality) {
  if (!text.empty() && modality != model::Modality::kBytes) {
    return invalid_argument("must be token numbers: the model is not over bytes of text", "prompt");
  }
  std::vector<int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// A text, token numbers, or a list of either.
Status read_prompts(JsonReader& reader, const ModelFacts& facts, CompletionRequest* request) {
  const model::ModelConfig& config = facts.config;
  const Json* value = reader.optional("prompt");
  const Json::Array* array = value != nullptr ? value->as_array() : nullptr;
  if (value == nullptr) {
    request->prompts.emplace_back();
  } else if (const std::string* text = value->as_string()) {
    TARN_ASSIGN(auto tokens, tokens_of_text(*text, config.modality));
    request->prompts.push_back(std::move(tokens));
  } else if (array == nullptr) {
    return invalid_argument(
        std::string("must be a string, token numbers, or a list of these, got ") +
            value->type_name(),
        "prompt");
  } else if (array->empty() || (!array->front().as_string() && !array->front().as_array())) {
    TARN_ASSIGN(auto tokens, tokens_of_numbers(*array, config.vocabulary, "prompt"));
    request->prompts.push_back(std::move(tokens));
  } else {
    if (static_cast<int64_t>(array->size()) > facts.limits.choices) {
      return invalid_argument("has " + std::to_string(array->size()) + " prompts, at most " +
                                  std::to_string(facts.limits.choices) + " are taken",
                              "prompt");
    }
    for (const Json& item : *array) {
      const std::string* words = item.as_string();
      const Json::Array* numbers = item.as_array();
      if (words == nullptr && numbers == nullptr) {
        return invalid_argument("holds both prompts and something else", "prompt");
      }
      TARN_ASSIGN(auto tokens, words ? tokens_of_text(*words, config.modality)
                                     : tokens_of_numbers(*numbers, config.vocabulary, "prompt"));
      request->prompts.push_back(std::move(tokens));
    }
  }
  const auto count = static_cast<int64_t>(request->prompts.size());
  if (count > 1 && !request->session.empty()) {
    return invalid_argument("must be one with a session", "prompt");
  }
  if (count * request->n <= facts.limits.choices) return {};
  return invalid_argument("times " + std::to_string(count) + " prompts is more than " +
                              std::to_string(facts.limits.choices) + " sequences",
                          "n");
}

/// The first pixels of a picture, 8 bits per channel, as base64 or numbers; as the model's levels.
Status read_pixels(JsonReader& reader, const model::ModelConfig& config,
                   std::vector<int32_t>* levels) {
  const Json* value = reader.optional("prompt_pixels");
  if (value == nullptr) return {};
  std::vector<int32_t> pixels;
  if (const std::string* text = value->as_string()) {
    const auto bytes = decode_base64(*text);
    if (!bytes) return invalid_argument("is no base64", "prompt_pixels");
    for (const char byte : *bytes) pixels.push_back(static_cast<unsigned char>(byte));
  } else if (const Json::Array* numbers = value->as_array()) {
    TARN_ASSIGN(pixels, tokens_of_numbers(*numbers, 256, "prompt_pixels"));
  } else {
    return invalid_argument(
        std::string("must be base64 or a list of numbers, got ") + value->type_name(),
        "prompt_pixels");
  }
  const int64_t most = config.image_width * config.image_height * config.image_channels;
  if (static_cast<int64_t>(pixels.size()) > most) {
    return invalid_argument(
        "has " + std::to_string(pixels.size()) + " values, a picture has " + std::to_string(most),
        "prompt_pixels");
  }
  for (const int32_t pixel : pixels) {
    levels->push_back(report::level_of_pixel(static_cast<uint8_t>(pixel), config.head.classes));
  }
  return {};
}

}  // namespace

Result<CompletionRequest> parse_completion(const Json& body, const ModelFacts& facts) {
  JsonReader reader(body, "");
  CompletionRequest request;
  TARN_RETURN_IF_ERROR(read_turn(reader, facts, &request));
  TARN_RETURN_IF_ERROR(read_stream_options(reader, &request));
  TARN_RETURN_IF_ERROR(read_stop(reader, kMaxStopStrings, &request.stop));
  TARN_RETURN_IF_ERROR(read_prompts(reader, facts, &request));
  request.echo = reader.boolean("echo", false);
  request.log_probs = optional_integer(reader, "logprobs", 0, kMaxLogProbs);
  if (request.echo && request.log_probs) {
    return Error{ErrorCode::kUnsupported,
                 "is not supported with logprobs: those of the prompt are not computed", "echo"};
  }
  request.max_tokens = reader.integer("max_tokens", 0, facts.limits.max_tokens,
                                      std::min(kCompletionTokens, facts.limits.max_tokens));
  TARN_RETURN_IF_ERROR(refuse_unsupported(reader, kUnsupported));
  TARN_RETURN_IF_ERROR(refuse_unsupported(reader, kCompletionUnsupported));
  TARN_RETURN_IF_ERROR(finish(reader, body));
  TARN_RETURN_IF_ERROR(check_log_probs(request));
  return request;
}

Result<CompletionRequest> parse_chat(const Json& body, const ModelFacts& facts) {
  JsonReader reader(body, "");
  CompletionRequest request;
  request.chat = true;
  TARN_RETURN_IF_ERROR(read_turn(reader, facts, &request));
  TARN_RETURN_IF_ERROR(read_stream_options(reader, &request));
  if (facts.config.modality != model::Modality::kBytes) {
    return wrong_modality("bytes of text", "messages");
  }
  // One place is the template's own.
  TARN_RETURN_IF_ERROR(read_stop(reader, kMaxStopStrings - 1, &request.stop));
  request.stop.insert(request.stop.begin(), kChatStop);
  const int64_t most = facts.limits.max_tokens;
  const auto old_name = optional_integer(reader, "max_tokens", 1, most);
  const auto new_name = optional_integer(reader, "max_completion_tokens", 1, most);
  if (old_name && new_name && *old_name != *new_name) {
    return invalid_argument("differs from max_completion_tokens", "max_tokens");
  }
  request.max_tokens = new_name.value_or(old_name.value_or(std::min(kChatTokens, most)));
  TARN_RETURN_IF_ERROR(read_chat_log_probs(reader, &request));
  TARN_RETURN_IF_ERROR(refuse_unsupported(reader, kUnsupported));
  TARN_RETURN_IF_ERROR(refuse_unsupported(reader, kChatUnsupported));
  const Json* messages = reader.required("messages");
  TARN_RETURN_IF_ERROR(finish(reader, body));
  TARN_ASSIGN(const auto parsed, parse_messages(*messages));
  TARN_ASSIGN(auto tokens,
              tokens_of_text(render_chat(parsed, !request.session.empty()), facts.config.modality));
  request.prompts.push_back(std::move(tokens));
  TARN_RETURN_IF_ERROR(check_log_probs(request));
  request.after_blank_line = parsed.front().role != ChatMessage::Role::kAssistant;
  return request;
}

Result<ImageRequest> parse_image(const Json& body, const ModelFacts& facts) {
  JsonReader reader(body, "");
  ImageRequest request;
  const model::ModelConfig& config = facts.config;
  TARN_RETURN_IF_ERROR(read_turn(reader, facts, &request));
  if (config.modality != model::Modality::kImage) return wrong_modality("pixels", "model");
  TARN_RETURN_IF_ERROR(read_pixels(reader, config, &request.prompt));
  const std::string own =
      std::to_string(config.image_width) + "x" + std::to_string(config.image_height);
  const std::string size = reader.string("size", "auto");
  if (size != "auto" && size != own) {
    return invalid_argument("got " + json_quote(size, 40) + ", the model draws " + own, "size");
  }
  const int64_t rows = reader.integer("rows", 1, config.image_height, config.image_height);
  request.max_tokens = rows * config.image_width * config.image_channels;
  reader.optional("moderation");
  TARN_RETURN_IF_ERROR(refuse_unsupported(reader, kUnsupported));
  TARN_RETURN_IF_ERROR(refuse_unsupported(reader, kImageUnsupported));
  TARN_RETURN_IF_ERROR(finish(reader, body));
  return request;
}

std::string text_of_tokens(const std::vector<int32_t>& tokens, model::Modality modality) {
  std::string text;
  if (modality != model::Modality::kBytes) {
    for (const int32_t token : tokens) {
      if (!text.empty()) text += ' ';
      text += std::to_string(token);
    }
    return text;
  }
  runtime::Utf8Stream stream;
  for (const int32_t token : tokens) {
    if (token < 256) stream.push(static_cast<uint8_t>(token), &text);
  }
  stream.flush(&text);
  return text;
}

}  // namespace tarn::serve::api
