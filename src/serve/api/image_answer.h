#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/image.h"
#include "serve/api/completion_answer.h"
#include "serve/api/requests.h"
#include "serve/api/turn_group.h"

namespace tarn::serve::api {

/// Pictures pixel by pixel: as PNG files at the end, in a stream row by row before that.
class ImageAnswer : public Answer {
 public:
  ImageAnswer(AnswerHead head, const ImageRequest& request, const model::ModelConfig& config);

  void token(size_t choice, const TokenEvent& event, std::string* out) override;
  void choice_end(size_t choice, const TurnResult& result, std::string* out) override;
  void stream_end(std::string* out) override;
  Json body() override;

 private:
  struct Choice {
    report::Image picture;
    int64_t first = -1;  // value that this turn began with
    int64_t end = 0;     // values that are known
    Json data;
  };
  void place_prompt(Choice& choice, int64_t first);
  void place(Choice& choice, int64_t position, int32_t level) const;
  Json picture_json(const Choice& choice) const;

  const AnswerHead head_;
  const bool stream_;
  const int64_t row_values_;
  const int64_t levels_;
  const std::vector<int32_t> prompt_;
  std::vector<Choice> choices_;
  Outcome outcome_;
};

}  // namespace tarn::serve::api
