#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/file.h"
#include "base/rng.h"
#include "data/readers.h"

namespace tarn::data {

Result<SequenceDataset> load_text_bytes(const DataSpec& spec, const std::string& directory,
                                        Split split) {
  constexpr int64_t kMaxTextBytes = int64_t{8} << 30;
  const std::string path = spec.file.empty() ? directory : directory + "/" + spec.file;
  TARN_ASSIGN(const std::string text, read_file(path, kMaxTextBytes));
  const auto size = static_cast<int64_t>(text.size());
  const auto test = static_cast<int64_t>(spec.test_fraction * static_cast<double>(size));
  const auto valid = static_cast<int64_t>(spec.valid_fraction * static_cast<double>(size));
  const int64_t borders[] = {0, size - test - valid, size - test, size};
  const int64_t begin = borders[static_cast<size_t>(split)];
  const int64_t end = borders[static_cast<size_t>(split) + 1];

  SequenceDataset dataset;
  dataset.spec = spec;
  dataset.split = split;
  dataset.length = spec.length;
  dataset.vocabulary = 256;
  // Training windows start up to length − 1 bytes late, so that their borders move.
  const int64_t slack = split == Split::kTrain ? spec.length - 1 : 0;
  dataset.count = std::max<int64_t>(0, end - begin - slack) / spec.length;
  if (dataset.count == 0) {
    return invalid_argument("the " + std::string(split_name(split)) + " split has " +
                                std::to_string(end - begin) + " bytes, wanted at least " +
                                std::to_string(spec.length + slack) + " for windows of " +
                                std::to_string(spec.length),
                            path);
  }
  dataset.bytes.assign(text.begin() + begin, text.begin() + end);
  return dataset;
}

void copy_sequence(const DataSpec& spec, uint64_t seed, uint64_t stream, uint8_t* tokens,
                   uint8_t* counted) {
  const int64_t length = 2 * spec.max_symbols + 1;
  const auto separator = static_cast<uint8_t>(spec.symbols);
  const auto padding = static_cast<uint8_t>(spec.symbols + 1);
  Philox random{seed, stream};
  const int64_t n =
      spec.min_symbols +
      random.next_below(static_cast<uint32_t>(spec.max_symbols - spec.min_symbols + 1));
  std::memset(tokens, padding, static_cast<size_t>(length));
  for (int64_t i = 0; i < n; ++i) {
    tokens[i] = static_cast<uint8_t>(random.next_below(static_cast<uint32_t>(spec.symbols)));
    tokens[n + 1 + i] = tokens[i];
  }
  tokens[n] = separator;
  if (counted != nullptr) {
    std::memset(counted, 0, static_cast<size_t>(length));
    std::memset(counted + n + 1, 1, static_cast<size_t>(n));
  }
}

void recall_sequence(const DataSpec& spec, uint64_t seed, uint64_t stream, uint8_t* tokens,
                     uint8_t* counted) {
  const SequenceShape shape = sequence_shape(spec);
  Philox random{seed, stream};
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random.next_below(static_cast<uint32_t>(bound)));
  };
  const int64_t pairs = spec.min_pairs + below(spec.max_pairs - spec.min_pairs + 1);
  int64_t filler = spec.min_filler + below(spec.max_filler - spec.min_filler + 1);
  std::memset(tokens, static_cast<int>(shape.vocabulary - 1), static_cast<size_t>(shape.length));
  if (counted != nullptr) std::memset(counted, 0, static_cast<size_t>(shape.length));

  std::array<uint8_t, 256> keys, values;  // the first `pairs` of them are used
  std::iota(keys.begin(), keys.end(), uint8_t{0});
  int64_t at = 0;
  for (int64_t i = 0; i < pairs;) {
    // Every arrangement of the remaining pairs and fillers is equally likely.
    if (i > 0 && below(pairs - i + filler) < filler) {
      tokens[at++] = static_cast<uint8_t>(spec.keys + spec.values + below(spec.fillers));
      --filler;
      continue;
    }
    const auto slot = static_cast<size_t>(i++);
    std::swap(keys[slot], keys[slot + static_cast<size_t>(below(spec.keys - i + 1))]);
    values[slot] = static_cast<uint8_t>(spec.keys + below(spec.values));
    tokens[at++] = keys[slot];
    tokens[at++] = values[slot];
  }
  for (; filler > 0; --filler) {
    tokens[at++] = static_cast<uint8_t>(spec.keys + spec.values + below(spec.fillers));
  }
  for (int64_t left = pairs; left > 0; --left) {
    const auto asked = static_cast<size_t>(below(left));
    tokens[at++] = keys[asked];
    if (counted != nullptr) counted[at] = 1;
    tokens[at++] = values[asked];
    keys[asked] = keys[static_cast<size_t>(left - 1)];
    values[asked] = values[static_cast<size_t>(left - 1)];
  }
}

}  // namespace tarn::data
