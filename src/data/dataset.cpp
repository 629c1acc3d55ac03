#include "data/dataset.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/rng.h"
#include "data/readers.h"

namespace tarn::data {
namespace {

// Random streams of one seed; far apart so that no two uses share numbers.
constexpr uint64_t kOrderStream = uint64_t{1} << 40;
constexpr uint64_t kOffsetStream = uint64_t{2} << 40;
constexpr uint64_t kTrainStream = uint64_t{1} << 56;
constexpr uint64_t kValidStream = uint64_t{2} << 56;
constexpr uint64_t kTestStream = uint64_t{3} << 56;

uint64_t generated_stream(const SequenceDataset& dataset, int64_t epoch, int64_t index) {
  const auto position = static_cast<uint64_t>(index);
  switch (dataset.split) {
    case Split::kTrain:
      return kTrainStream + static_cast<uint64_t>(epoch * dataset.count) + position;
    case Split::kValid: return kValidStream + position;
    case Split::kTest: return kTestStream + position;
  }
  return 0;
}

SequenceDataset generated(const DataSpec& spec, Split split) {
  SequenceDataset dataset;
  dataset.spec = spec;
  dataset.split = split;
  dataset.count = split == Split::kTrain ? spec.epoch_sequences
                                         : std::min(spec.epoch_sequences, spec.held_out_sequences);
  dataset.length = sequence_shape(spec).length;
  dataset.vocabulary = sequence_shape(spec).vocabulary;
  return dataset;
}

}  // namespace

Result<Split> split_from_name(const std::string& name, const std::string& where) {
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    if (name == split_name(split)) return split;
  }
  return invalid_argument("unknown split \"" + name + "\"; it is train, valid or test", where);
}

const char* split_name(Split split) {
  switch (split) {
    case Split::kTrain: return "train";
    case Split::kValid: return "valid";
    case Split::kTest: return "test";
  }
  return "";
}

void SequenceDataset::sequence(int64_t epoch, int64_t index, uint8_t* tokens,
                               uint8_t* counted) const {
  TARN_CHECK(index >= 0 && index < count);
  if (is_generated(spec.kind)) {
    const auto generate = spec.kind == DataKind::kCopy ? copy_sequence : recall_sequence;
    generate(spec, seed, generated_stream(*this, epoch, index), tokens, counted);
    return;
  }
  int64_t first = index * length;
  if (spec.kind == DataKind::kTextBytes && split == Split::kTrain) {
    Philox random{seed, kOffsetStream + static_cast<uint64_t>(epoch)};
    first += random.next_below(static_cast<uint32_t>(length));
  }
  std::memcpy(tokens, bytes.data() + first, static_cast<size_t>(length));
  if (counted != nullptr) std::memset(counted, 1, static_cast<size_t>(length));
}

bool is_frames(DataKind kind) { return kind == DataKind::kAn4Mfcc || kind == DataKind::kAudio; }

const char* label_name(const DataSpec& spec) {
  if (spec.kind == DataKind::kAn4Mfcc) return "phone";
  return spec.unit == LabelUnit::kWords ? "word" : "letter";
}

bool is_generated(DataKind kind) { return kind == DataKind::kCopy || kind == DataKind::kRecall; }

SequenceShape sequence_shape(const DataSpec& spec) {
  switch (spec.kind) {
    case DataKind::kMnist: return {784, 256};
    case DataKind::kCifar10: return {3072, 256};
    case DataKind::kTextBytes: return {spec.length, 256};
    case DataKind::kCopy: return {2 * spec.max_symbols + 1, spec.symbols + 2};
    case DataKind::kRecall:
      return {4 * spec.max_pairs + spec.max_filler, spec.keys + spec.values + spec.fillers + 1};
    case DataKind::kAn4Mfcc:
    case DataKind::kAudio: break;
  }
  return {};
}

Result<SequenceDataset> load(const DataSpec& spec, const std::string& directory, Split split,
                             uint64_t seed) {
  if (directory.empty() && !is_generated(spec.kind)) {
    return invalid_argument("no folder is given, and this data set is read from one", "--data");
  }
  if (!directory.empty() && is_generated(spec.kind)) {
    return invalid_argument("got \"" + directory + "\", but this data is generated from its " +
                                "config; wanted no folder",
                            "--data");
  }
  Result<SequenceDataset> result = [&]() -> Result<SequenceDataset> {
    switch (spec.kind) {
      case DataKind::kMnist: return load_mnist(spec, directory, split);
      case DataKind::kCifar10: return load_cifar10(spec, directory, split);
      case DataKind::kTextBytes: return load_text_bytes(spec, directory, split);
      case DataKind::kAn4Mfcc:
      case DataKind::kAudio:
        return invalid_argument("the data is frames, wanted sequences of symbols", directory);
      case DataKind::kCopy:
      case DataKind::kRecall: break;
    }
    return generated(spec, split);
  }();
  if (result.ok()) result->seed = seed;
  return result;
}

std::vector<int32_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Philox random{seed, kOrderStream + static_cast<uint64_t>(epoch)};
  for (int64_t i = count - 1; i > 0; --i) {
    const uint32_t other = random.next_below(static_cast<uint32_t>(i + 1));
    std::swap(order[static_cast<size_t>(i)], order[other]);
  }
  return order;
}

}  // namespace tarn::data
