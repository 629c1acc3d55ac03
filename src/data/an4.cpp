// The CMU Census (AN4) database as Sphinx packs it.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/file.h"
#include "data/frames.h"

namespace tarn::data {
namespace {

constexpr int64_t kChannels = 13;
constexpr int64_t kFrameRate = 100;
constexpr int64_t kMaxTextBytes = int64_t{1} << 24;
constexpr int64_t kMaxFeatureBytes = int64_t{1} << 26;

using Lines = std::vector<std::vector<std::string>>;

/// The words of every line that has some.
Result<Lines> read_lines(const std::string& path) {
  TARN_ASSIGN(const std::string text, read_file(path, kMaxTextBytes));
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    if (!found.empty()) lines.push_back(std::move(found));
  }
  return lines;
}

struct Dictionary {
  std::vector<std::string> phones;                      ///< in alphabetical order
  std::map<std::string, std::vector<int32_t>> entries;  ///< phones of a word, numbered from 1
};

/// Lines "WORD PHONE …"; further pronunciations of a word are WORD(2), WORD(3), ….
Result<Dictionary> read_dictionary(const std::string& path) {
  TARN_ASSIGN(const Lines lines, read_lines(path));
  Dictionary dictionary;
  std::set<std::string> phones;
  for (const auto& line : lines) phones.insert(line.begin() + 1, line.end());
  dictionary.phones.assign(phones.begin(), phones.end());
  for (const auto& line : lines) {
    if (line.size() < 2) return corrupt("word \"" + line[0] + "\" has no phones", path);
    std::vector<int32_t>& entry = dictionary.entries[line[0]];
    entry.clear();
    for (size_t i = 1; i < line.size(); ++i) {
      entry.push_back(static_cast<int32_t>(std::distance(phones.begin(), phones.find(line[i]))) +
                      1);
    }
  }
  return dictionary;
}

bool is_filler(const std::string& word) { return word.front() == '<' && word.back() == '>'; }

/// The phones of every transcript: lines "WORD … (NAME)".
Result<std::map<std::string, std::vector<int32_t>>> read_transcripts(const std::string& path,
                                                                     const Dictionary& dictionary) {
  TARN_ASSIGN(const Lines lines, read_lines(path));
  std::map<std::string, std::vector<int32_t>> transcripts;
  for (const auto& line : lines) {
    const std::string& last = line.back();
    if (last.size() < 3 || last.front() != '(' || last.back() != ')') {
      return corrupt("a line ends with \"" + last + "\", wanted the utterance's name in brackets",
                     path);
    }
    std::vector<int32_t>& labels = transcripts[last.substr(1, last.size() - 2)];
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      if (is_filler(line[i])) continue;
      const auto entry = dictionary.entries.find(line[i]);
      if (entry == dictionary.entries.end()) {
        return corrupt("word \"" + line[i] + "\" is not in the dictionary", path);
      }
      labels.insert(labels.end(), entry->second.begin(), entry->second.end());
    }
  }
  return transcripts;
}

/// The folder that a file lies in: an4_clstk/fash/an251-fash-b is spoken by fash.
std::string speaker_of(const std::string& file) {
  const size_t end = file.rfind('/');
  if (end == std::string::npos) return "";
  const size_t begin = file.rfind('/', end - 1);
  return file.substr(begin + 1, end - begin - 1);
}

/// Whether the speaker belongs to the split, once the speakers before are known.
bool is_in_split(const DataSpec& spec, Split split, const std::string& speaker,
                 std::vector<std::string>& speakers) {
  if (split == Split::kTest) return true;
  auto found = std::find(speakers.begin(), speakers.end(), speaker);
  if (found == speakers.end()) found = speakers.insert(speakers.end(), speaker);
  const int64_t number = found - speakers.begin() + 1;
  return (number % spec.holdout_speakers == 0) == (split == Split::kValid);
}

}  // namespace

Result<FrameDataset> load_an4(const DataSpec& spec, const std::string& directory, Split split) {
  const std::string list = directory + "/etc/an4_" + (split == Split::kTest ? "test" : "train");
  TARN_ASSIGN(Dictionary dictionary, read_dictionary(directory + "/etc/an4.dic"));
  TARN_ASSIGN(const auto transcripts, read_transcripts(list + ".transcription", dictionary));
  TARN_ASSIGN(const Lines files, read_lines(list + ".fileids"));
  FrameDataset dataset;
  dataset.spec = spec;
  dataset.split = split;
  dataset.channels = kChannels;
  dataset.features = 3 * kChannels;
  dataset.frame_rate = kFrameRate;
  dataset.symbols = std::move(dictionary.phones);
  std::vector<std::string> speakers;
  for (const auto& line : files) {
    const std::string& file = line[0];
    Utterance utterance;
    utterance.speaker = speaker_of(file);
    if (!is_in_split(spec, split, utterance.speaker, speakers)) continue;
    utterance.name = file.substr(file.rfind('/') + 1);
    const auto labels = transcripts.find(utterance.name);
    if (labels == transcripts.end() || labels->second.empty()) {
      return corrupt("utterance \"" + utterance.name + "\" has no transcript", list + ".fileids");
    }
    utterance.labels = labels->second;
    const std::string path = directory + "/feat/" + file + ".mfc";
    TARN_ASSIGN(const std::string content, read_file(path, kMaxFeatureBytes));
    TARN_ASSIGN(const std::vector<float> cepstra, parse_sphinx_features(content, kChannels, path));
    utterance.frames = with_differences(cepstra, kChannels, 2);
    dataset.utterances.push_back(std::move(utterance));
  }
  if (dataset.utterances.empty()) {
    return invalid_argument(std::string("the ") + split_name(split) + " split has no utterances",
                            list + ".fileids");
  }
  normalise_speakers(dataset.features, dataset.utterances);
  if (spec.join > 0) {
    dataset.utterances = join_utterances(dataset.utterances, dataset.features, spec.join);
  }
  return dataset;
}

}  // namespace tarn::data
