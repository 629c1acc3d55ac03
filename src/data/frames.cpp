#include "data/frames.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

namespace tarn::data {
namespace {

uint32_t big_endian(std::string_view content, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(content[at + i]);
  return value;
}

/// Slopes over five frames of rows of `channels` numbers.
std::vector<float> slopes(const std::vector<float>& rows, int64_t channels) {
  constexpr int64_t kReach = 2;
  constexpr double kSum = 10.0;  // 2 (1² + 2²)
  const int64_t length = static_cast<int64_t>(rows.size()) / channels;
  std::vector<float> result(rows.size());
  for (int64_t t = 0; t < length; ++t) {
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = [&](int64_t time) {
        const int64_t row = std::clamp<int64_t>(time, 0, length - 1);
        return static_cast<double>(rows[static_cast<size_t>(row * channels + c)]);
      };
      double sum = 0.0;
      for (int64_t n = 1; n <= kReach; ++n) {
        sum += static_cast<double>(n) * (at(t + n) - at(t - n));
      }
      result[static_cast<size_t>(t * channels + c)] = static_cast<float>(sum / kSum);
    }
  }
  return result;
}

/// Indices of every speaker's utterances; speakers in alphabetical order.
std::map<std::string, std::vector<size_t>> by_speaker(const std::vector<Utterance>& utterances) {
  std::map<std::string, std::vector<size_t>> result;
  for (size_t i = 0; i < utterances.size(); ++i) result[utterances[i].speaker].push_back(i);
  return result;
}

}  // namespace

Result<std::vector<float>> parse_sphinx_features(std::string_view content, int64_t channels,
                                                 const std::string& where) {
  const auto size = static_cast<int64_t>(content.size());
  const int64_t count = size < 4 ? 0 : static_cast<int32_t>(big_endian(content, 0));
  if (count <= 0 || count % channels != 0 || size != 4 + 4 * count) {
    return corrupt("has " + std::to_string(size) + " bytes and claims " + std::to_string(count) +
                       " numbers, wanted 4 bytes for a multiple of " + std::to_string(channels) +
                       " and 4 for each of them",
                   where);
  }
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(std::bit_cast<float>(big_endian(content, static_cast<size_t>(4 + 4 * i))));
    if (!std::isfinite(values.back())) {
      return corrupt("number " + std::to_string(i) + " is not finite", where);
    }
  }
  return values;
}

std::vector<float> with_differences(const std::vector<float>& frames, int64_t channels) {
  const std::vector<float> first = slopes(frames, channels);
  const std::vector<float> second = slopes(first, channels);
  std::vector<float> result;
  result.reserve(3 * frames.size());
  for (auto row = int64_t{0}; row < static_cast<int64_t>(frames.size()); row += channels) {
    for (const std::vector<float>* part : {&frames, &first, &second}) {
      result.insert(result.end(), part->begin() + row, part->begin() + row + channels);
    }
  }
  return result;
}

void normalise_speakers(int64_t features, std::vector<Utterance>& utterances) {
  const auto width = static_cast<size_t>(features);
  for (const auto& [speaker, indices] : by_speaker(utterances)) {
    for (size_t f = 0; f < width; ++f) {
      double count = 0.0, sum = 0.0, squares = 0.0;
      for (const size_t i : indices) {
        const std::vector<float>& frames = utterances[i].frames;
        for (size_t at = f; at < frames.size(); at += width) {
          const double value = frames[at];
          count += 1.0;
          sum += value;
          squares += value * value;
        }
      }
      const double mean = sum / count;
      const double deviation = std::sqrt(std::max(squares / count - mean * mean, 1e-10));
      for (const size_t i : indices) {
        std::vector<float>& frames = utterances[i].frames;
        for (size_t at = f; at < frames.size(); at += width) {
          frames[at] = static_cast<float>((static_cast<double>(frames[at]) - mean) / deviation);
        }
      }
    }
  }
}

std::vector<Utterance> join_utterances(const std::vector<Utterance>& utterances, int64_t features,
                                       int64_t min_frames) {
  const auto wanted = static_cast<size_t>(min_frames * features);
  std::vector<Utterance> result;
  for (const auto& [speaker, indices] : by_speaker(utterances)) {
    for (size_t used = 0; used < indices.size();) {
      Utterance& joined = result.emplace_back();
      joined.speaker = speaker;
      joined.name = utterances[indices[used]].name + "+";
      do {
        const Utterance& next = utterances[indices[used++ % indices.size()]];
        joined.frames.insert(joined.frames.end(), next.frames.begin(), next.frames.end());
        joined.labels.insert(joined.labels.end(), next.labels.begin(), next.labels.end());
      } while (joined.frames.size() < wanted);
    }
  }
  return result;
}

}  // namespace tarn::data
