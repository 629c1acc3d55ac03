#include "data/frames.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "audio/frontend.h"

namespace tarn::data {
namespace {

uint32_t big_endian(std::string_view content, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(content[at + i]);
  return value;
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

std::vector<float> with_differences(const std::vector<float>& frames, int64_t channels,
                                    int64_t order) {
  audio::Differences differences(channels, order);
  std::vector<float> result;
  result.reserve(frames.size() * static_cast<size_t>(1 + order));
  differences.push(frames, result);
  differences.finish(result);
  return result;
}

void make_frames(const audio::FrontendConfig& config, std::vector<Utterance>& utterances) {
  const bool by_speakers = config.normalisation == audio::NormalisationKind::kSpeaker;
  audio::FrontendConfig direct = config;
  if (by_speakers) direct.differences = 0;  // their scale follows from that of the energies
  audio::Frontend frontend(direct);
  for (Utterance& utterance : utterances) {
    std::vector<float> rows;
    frontend.push(utterance.frames, rows);
    frontend.finish(rows);
    utterance.frames = std::move(rows);
  }
  if (!by_speakers) return;
  normalise_speakers(config.mels, utterances);
  for (Utterance& utterance : utterances) {
    utterance.frames = with_differences(utterance.frames, config.mels, config.differences);
  }
}

Result<FrameDataset> load_frames(const DataSpec& spec, const std::string& directory, Split split,
                                 const FrameSource& source) {
  if (directory.empty()) {
    return invalid_argument("no folder is given, and this data set is read from one", "--data");
  }
  if (spec.kind == DataKind::kAudio) return load_audio(spec, directory, split, source);
  return load_an4(spec, directory, split);
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
                                       int64_t min_frames, int32_t separator, bool vary) {
  constexpr double kGolden = 0.6180339887498949;
  std::vector<Utterance> result;
  for (const auto& [speaker, indices] : by_speaker(utterances)) {
    for (size_t used = 0; used < indices.size();) {
      Utterance& joined = result.emplace_back();
      const double turns = kGolden * static_cast<double>(result.size());
      const double share = vary ? turns - std::floor(turns) : 1.0;
      const auto wanted = static_cast<size_t>(share * static_cast<double>(min_frames)) *
                          static_cast<size_t>(features);
      joined.speaker = speaker;
      joined.name = utterances[indices[used]].name + "+";
      do {
        const Utterance& next = utterances[indices[used++ % indices.size()]];
        if (separator != 0 && !joined.labels.empty()) joined.labels.push_back(separator);
        joined.frames.insert(joined.frames.end(), next.frames.begin(), next.frames.end());
        joined.labels.insert(joined.labels.end(), next.labels.begin(), next.labels.end());
      } while (joined.frames.size() < wanted);
    }
  }
  return result;
}

}  // namespace tarn::data
