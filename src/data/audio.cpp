// Folders of sound files with manifests.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "audio/sound_reader.h"
#include "base/file.h"
#include "data/frames.h"

namespace tarn::data {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{1} << 28;
constexpr int64_t kMaxSamples = int64_t{1} << 27;  // of one file

struct Entry {
  std::string path, speaker;
  std::vector<std::string> labels;
};

std::vector<std::string_view> split_at(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (const std::string_view word : split_at(text, ' ')) {
    if (!word.empty()) words.emplace_back(word);
  }
  return words;
}

/// The words' characters in UTF-8, with a space between words; nothing for bytes that are none.
std::vector<std::string> characters_of(const std::vector<std::string>& words) {
  std::vector<std::string> characters;
  for (const std::string& word : words) {
    if (!characters.empty()) characters.emplace_back(" ");
    for (size_t at = 0; at < word.size();) {
      const auto first = static_cast<unsigned char>(word[at]);
      const size_t bytes = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
      const std::string character = word.substr(at, bytes);
      const auto continues = [](char byte) { return (byte & 0xc0) == 0x80; };
      if ((first >= 0x80 && first < 0xc2) || first > 0xf4 || character.size() != bytes ||
          !std::all_of(character.begin() + 1, character.end(), continues)) {
        return {};
      }
      characters.push_back(character);
      at += bytes;
    }
  }
  return characters;
}

/// The folder that a file lies in.
std::string folder_of(std::string_view path) {
  const size_t end = path.rfind('/');
  return std::string(path.substr(0, end == std::string_view::npos ? 0 : end));
}

Result<std::vector<Entry>> read_manifest(const std::string& path, LabelUnit unit) {
  TARN_ASSIGN(const std::string text, read_file(path, kMaxManifestBytes));
  std::vector<Entry> entries;
  int64_t number = 0;
  for (std::string_view line : split_at(text, '\n')) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = path + ": line " + std::to_string(number);
    const auto fields = split_at(line, '\t');
    if (fields.size() < 2 || fields.size() > 3 || fields[0].empty()) {
      return corrupt(
          "has " + std::to_string(fields.size()) +
              " fields, wanted a path, a transcript and maybe a speaker, with tabs between",
          where);
    }
    Entry& entry = entries.emplace_back();
    entry.path = fields[0];
    entry.speaker = fields.size() == 3 ? std::string(fields[2]) : folder_of(fields[0]);
    const std::vector<std::string> words = words_of(fields[1]);
    entry.labels = unit == LabelUnit::kWords ? words : characters_of(words);
    if (entry.labels.empty()) {
      return corrupt(words.empty() ? "the transcript is empty" : "the transcript is no UTF-8",
                     where);
    }
  }
  return entries;
}

using Numbers = std::map<std::string, int32_t>;

/// Labels by their names.
Numbers numbers_of(const std::vector<std::string>& symbols) {
  Numbers numbers;
  for (const std::string& symbol : symbols) {
    numbers.emplace(symbol, static_cast<int32_t>(numbers.size()) + 1);
  }
  return numbers;
}

Result<std::vector<std::string>> training_symbols(const DataSpec& spec,
                                                  const std::string& directory) {
  TARN_ASSIGN(const auto entries, read_manifest(directory + "/train.tsv", spec.unit));
  std::set<std::string> symbols;
  for (const Entry& entry : entries) symbols.insert(entry.labels.begin(), entry.labels.end());
  if (spec.join > 0 && spec.unit == LabelUnit::kCharacters) symbols.insert(" ");
  return std::vector<std::string>(symbols.begin(), symbols.end());
}

Result<Utterance> read_utterance(const Entry& entry, const std::string& directory,
                                 const Numbers& numbers, int64_t rate) {
  Utterance utterance;
  utterance.name = entry.path;
  utterance.speaker = entry.speaker;
  const std::string path = entry.path.front() == '/' ? entry.path : directory + "/" + entry.path;
  for (const std::string& label : entry.labels) {
    const auto number = numbers.find(label);
    if (number == numbers.end()) {
      return corrupt("the transcript has \"" + label + "\", which is no label of the training data",
                     path);
    }
    utterance.labels.push_back(number->second);
  }
  TARN_ASSIGN(audio::SoundReader reader, audio::SoundReader::open(path, audio::RawKind::kNone, 0));
  TARN_RETURN_IF_ERROR(reader.expect_rate(rate));
  TARN_ASSIGN(utterance.frames, reader.read_all(kMaxSamples));
  return utterance;
}

}  // namespace

Result<FrameDataset> load_audio(const DataSpec& spec, const std::string& directory, Split split,
                                const FrameSource& source) {
  if (!source.frontend) {
    return invalid_argument(
        "is missing: the data is sound, and the model does not say how it becomes "
        "frames",
        "model.frontend");
  }
  const audio::FrontendConfig& frontend = *source.frontend;
  FrameDataset dataset;
  dataset.spec = spec;
  dataset.split = split;
  dataset.channels = frontend.mels;
  dataset.features = frontend.features();
  dataset.frame_rate = frontend.frame_rate();
  dataset.symbols = source.symbols;
  if (dataset.symbols.empty()) {
    TARN_ASSIGN(dataset.symbols, training_symbols(spec, directory));
  }
  const Numbers numbers = numbers_of(dataset.symbols);
  const std::string manifest = directory + "/" + split_name(split) + ".tsv";
  TARN_ASSIGN(const auto entries, read_manifest(manifest, spec.unit));
  if (entries.empty()) {
    return invalid_argument(std::string("the ") + split_name(split) + " split has no utterances",
                            manifest);
  }
  for (const Entry& entry : entries) {
    TARN_ASSIGN(Utterance utterance,
                read_utterance(entry, directory, numbers, frontend.sample_rate));
    dataset.utterances.push_back(std::move(utterance));
  }
  if (spec.join > 0) {
    const int64_t samples = (spec.join - 1) * frontend.hop_samples() + frontend.window_samples();
    const auto space = numbers.find(" ");
    const bool spaced = spec.unit == LabelUnit::kCharacters && space != numbers.end();
    dataset.utterances = join_utterances(dataset.utterances, 1, samples, spaced ? space->second : 0,
                                         split == Split::kTrain);
  }
  make_frames(frontend, dataset.utterances);
  for (const Utterance& utterance : dataset.utterances) {
    if (!utterance.frames.empty()) continue;
    return corrupt("\"" + utterance.name + "\" is shorter than a window of " +
                       std::to_string(frontend.window_samples()) + " samples",
                   manifest);
  }
  return dataset;
}

}  // namespace tarn::data
