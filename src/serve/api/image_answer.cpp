#include "serve/api/image_answer.h"

#include <algorithm>
#include <utility>

#include "report/png.h"
#include "serve/api/base64.h"

namespace tarn::serve::api {

using report::Image;

ImageAnswer::ImageAnswer(AnswerHead head, const ImageRequest& request,
                         const model::ModelConfig& config)
    : head_(std::move(head)),
      stream_(request.stream),
      row_values_(config.image_width * config.image_channels),
      levels_(config.head.classes),
      prompt_(request.prompt),
      choices_(static_cast<size_t>(request.n)),
      outcome_(request.session, request.n * static_cast<int64_t>(request.prompt.size())) {
  for (Choice& choice : choices_) {
    choice.picture =
        Image::filled(config.image_width, config.image_height, config.image_channels, 0);
  }
}

/// The pixels that were given, once it is known where they stand.
void ImageAnswer::place_prompt(Choice& choice, int64_t first) {
  if (choice.first >= 0) return;
  choice.first = std::clamp<int64_t>(first, 0, std::ssize(choice.picture.pixels));
  choice.end = choice.first;
  for (const int32_t level : prompt_) place(choice, choice.end, level);
}

/// A model may take longer sequences than one picture: what lies behind it is not shown.
void ImageAnswer::place(Choice& choice, int64_t position, int32_t level) const {
  if (position >= static_cast<int64_t>(choice.picture.pixels.size())) return;
  choice.picture.pixels[static_cast<size_t>(position)] = report::pixel_of_level(level, levels_);
  choice.end = position + 1;
}

void ImageAnswer::token(size_t index, const TokenEvent& event, std::string* out) {
  Choice& choice = choices_[index];
  place_prompt(choice, event.position - static_cast<int64_t>(prompt_.size()));
  place(choice, event.position, event.token);
  const bool ends_row = choice.end == event.position + 1 && choice.end % row_values_ == 0;
  if (!stream_ || !ends_row) return;
  const int64_t row = event.position / row_values_;
  const std::string_view bytes(reinterpret_cast<const char*>(choice.picture.at(row, 0)),
                               static_cast<size_t>(row_values_));
  append_event(Json::Object{{"type", "image_generation.row"},
                            {"index", static_cast<int64_t>(index)},
                            {"row", row},
                            {"channels", choice.picture.channels},
                            {"b64_pixels", encode_base64(bytes)}},
               out);
}

/// The rows that the turn has touched; pixels before it are black.
Json ImageAnswer::picture_json(const Choice& choice) const {
  const int64_t first_row = choice.first / row_values_;
  const int64_t end_row = (choice.end + row_values_ - 1) / row_values_;
  const Image& whole = choice.picture;
  Json json;
  json.set("first_row", first_row);
  json.set("rows", end_row - first_row);
  json.set("complete", choice.end == whole.height * row_values_);
  if (end_row == first_row) {
    json.set("b64_json", nullptr);
    return json;
  }
  Image rows = Image::filled(whole.width, end_row - first_row, whole.channels, 0);
  std::copy_n(whole.at(first_row, 0), rows.pixels.size(), rows.pixels.begin());
  const auto png = report::encode_png(rows);
  json.set("b64_json", png.ok() ? Json(encode_base64(*png)) : Json());
  return json;
}

void ImageAnswer::choice_end(size_t index, const TurnResult& result, std::string* out) {
  Choice& choice = choices_[index];
  place_prompt(choice, result.end.token_count - static_cast<int64_t>(prompt_.size()));
  outcome_.add(result);
  Json data = picture_json(choice);
  if (!stream_) {
    choice.data = std::move(data);
    return;
  }
  data.set("type", "image_generation.completed");
  data.set("index", static_cast<int64_t>(index));
  data.set("created_at", head_.created);
  data.set("model", head_.model);
  data.set("output_format", "png");
  if (outcome_.ended() == choices_.size()) {
    data.set("usage", outcome_.image_usage());
    data.set("tarn", outcome_.tarn());
  }
  append_event(data, out);
}

void ImageAnswer::stream_end(std::string* out) { *out += "data: [DONE]\n\n"; }

Json ImageAnswer::body() {
  Json::Array list;
  for (Choice& choice : choices_) list.push_back(std::move(choice.data));
  Json json;
  json.set("created", head_.created);
  json.set("model", head_.model);
  json.set("system_fingerprint", head_.fingerprint);
  json.set("output_format", "png");
  json.set("data", std::move(list));
  json.set("usage", outcome_.image_usage());
  json.set("tarn", outcome_.tarn());
  return json;
}

}  // namespace tarn::serve::api
