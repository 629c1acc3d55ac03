#include <string>
#include <string_view>

#include "base/check.h"
#include "serve/api/errors.h"
#include "serve/api/fields.h"
#include "serve/api/requests.h"
#include "serve/stop_strings.h"

namespace {

using tarn::Json;
using namespace tarn::serve::api;

tarn::model::ModelConfig config(tarn::model::Modality modality) {
  tarn::model::ModelConfig config;
  config.modality = modality;
  config.vocabulary = 257;
  config.head.classes = 256;
  config.image_width = config.image_height = 4;
  config.image_channels = 1;
  return config;
}

void check_failure(const tarn::Error& error) {
  const Failure failure = field_failure(error);
  TARN_CHECK(failure.status == 400 || failure.status == 404);
  const Json json = error_json(failure);
  const auto again = tarn::parse_json(json.dump(), "error");
  TARN_CHECK(again.ok() && *again == json);
}

void check_turn(const TurnFields& fields, const RequestLimits& limits) {
  TARN_CHECK(fields.n >= 1 && fields.n <= limits.choices);
  TARN_CHECK(tarn::runtime::validate(fields.sampler).ok());
  TARN_CHECK(tarn::serve::validate_stop_strings(fields.stop).ok());
  TARN_CHECK(fields.log_probs.value_or(0) >= 0);
  TARN_CHECK(fields.log_probs.value_or(0) <= tarn::serve::kMaxLogProbs);
}

void check_tokens(const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) TARN_CHECK(token >= 0 && token < 257);
}

void check(const tarn::Result<CompletionRequest>& request, const RequestLimits& limits) {
  if (!request.ok()) return check_failure(request.error());
  check_turn(*request, limits);
  TARN_CHECK(request->max_tokens >= 0 && request->max_tokens <= limits.max_tokens);
  TARN_CHECK(!request->prompts.empty());
  TARN_CHECK(std::ssize(request->prompts) * request->n <= limits.choices);
  for (const auto& prompt : request->prompts) check_tokens(prompt);
}

}  // namespace

/// Any bytes as the body of a request to each of the endpoints: an error that can be told, or a request
/// within the limits.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tarn::model::Modality;
  static const tarn::model::ModelConfig text = config(Modality::kBytes);
  static const tarn::model::ModelConfig pixels = config(Modality::kImage);
  const auto body = parse_body(std::string(reinterpret_cast<const char*>(data), size));
  if (!body.ok()) {
    check_failure(body.error());
    return 0;
  }
  for (const auto* model : {&text, &pixels}) {
    const ModelFacts facts{"model", *model, {}};
    check(parse_completion(*body, facts), facts.limits);
    check(parse_chat(*body, facts), facts.limits);
    const auto image = parse_image(*body, facts);
    if (!image.ok()) {
      check_failure(image.error());
      continue;
    }
    check_turn(*image, facts.limits);
    check_tokens(image->prompt);
  }
  return 0;
}
