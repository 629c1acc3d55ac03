// What a server says to `tarn bench serve`: an HTTP answer and the events of its body. The first byte
// of an input says how the rest is cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "serve/load/answer_reader.h"
#include "serve/load/completion_check.h"
#include "serve/load/event_reader.h"

namespace {

using namespace tarn::serve::load;  // NOLINT: one program
using Step = AnswerReader::Step;

struct Answer {
  Step step = Step::kMore;
  std::string body;
};

Answer read(std::string_view bytes, size_t piece) {
  AnswerReader reader;
  Answer answer;
  for (size_t i = 0; i < bytes.size() && answer.step == Step::kMore; i += piece) {
    answer.step = reader.put(bytes.substr(i, piece), &answer.body);
    const bool is_short = answer.step == Step::kDone && i + piece < bytes.size();
    if (is_short) answer.step = Step::kFailed;  // bytes behind the end
  }
  if (answer.step == Step::kMore) answer.step = reader.end();
  return answer;
}

struct Told {
  std::string verdict;
  uint64_t hash = 0;
};

Told told(std::string_view body, size_t piece) {
  CompletionCheck check({3, 2, true, false, 2});
  EventReader events;
  for (size_t i = 0; i < body.size(); i += piece) {
    events.put(body.substr(i, piece), [&](std::string_view data) { check.event(data); });
  }
  return {check.verdict(), check.hash()};
}

}  // namespace

/// However the bytes are cut, they are the same answer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = 1 + data[0] % 32;
  const Answer whole = read(bytes, std::max<size_t>(1, bytes.size()));
  const Answer cut = read(bytes, piece);
  TARN_CHECK(whole.step == cut.step);
  if (whole.step == Step::kDone) TARN_CHECK(whole.body == cut.body);
  const Told one = told(whole.body, std::max<size_t>(1, whole.body.size()));
  const Told other = told(whole.body, piece);
  TARN_CHECK(one.verdict == other.verdict && one.hash == other.hash);
  return 0;
}
