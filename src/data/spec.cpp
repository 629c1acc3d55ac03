#include <algorithm>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace tarn::data {
namespace {

const std::vector<std::string> kKindNames{"mnist",  "cifar10",  "text_bytes", "copy",
                                          "recall", "an4_mfcc", "audio"};
const std::vector<std::string> kUnitNames{"characters", "words"};

constexpr int64_t kMaxLength = int64_t{1} << 24;

void read_text_keys(JsonReader& reader, DataSpec& spec) {
  spec.file = reader.string("file", "");
  spec.length = reader.integer("length", 1, kMaxLength);
  spec.valid_fraction = reader.number("valid_fraction", 0.0, 0.5, spec.valid_fraction);
  spec.test_fraction = reader.number("test_fraction", 0.0, 0.5, spec.test_fraction);
  if (spec.file.find('/') != std::string::npos) {
    reader.fail("file", "must be a name inside the data folder, without \"/\"");
  }
}

void read_counts(JsonReader& reader, DataSpec& spec) {
  constexpr int64_t kMost = 1 << 30;
  spec.epoch_sequences = reader.integer("epoch_sequences", 1, kMost, spec.epoch_sequences);
  spec.held_out_sequences = reader.integer("held_out_sequences", 1, kMost, spec.held_out_sequences);
}

void read_copy_keys(JsonReader& reader, DataSpec& spec) {
  spec.symbols = reader.integer("symbols", 2, 250, spec.symbols);
  spec.max_symbols = reader.integer("max_symbols", 1, kMaxLength / 4, spec.max_symbols);
  spec.min_symbols = reader.integer("min_symbols", 1, spec.max_symbols, spec.min_symbols);
  read_counts(reader, spec);
}

constexpr int64_t kMostFrames = 1'000'000;

void read_an4_keys(JsonReader& reader, DataSpec& spec) {
  spec.holdout_speakers = reader.integer("holdout_speakers", 2, 1'000'000, spec.holdout_speakers);
  spec.join = reader.integer("join", 0, kMostFrames, spec.join);
}

void read_audio_keys(JsonReader& reader, DataSpec& spec) {
  spec.unit =
      static_cast<LabelUnit>(reader.choice("unit", kUnitNames, static_cast<size_t>(spec.unit)));
  spec.join = reader.integer("join", 0, kMostFrames, spec.join);
}

void read_recall_keys(JsonReader& reader, DataSpec& spec) {
  constexpr int64_t kMostSymbols = 256;  // tokens are bytes
  spec.keys = reader.integer("keys", 1, kMostSymbols, spec.keys);
  spec.values = reader.integer("values", 1, kMostSymbols, spec.values);
  spec.fillers = reader.integer("fillers", 1, kMostSymbols, spec.fillers);
  spec.max_pairs = reader.integer("max_pairs", 1, spec.keys, std::min(spec.max_pairs, spec.keys));
  spec.min_pairs = reader.integer("min_pairs", 1, spec.max_pairs, spec.min_pairs);
  spec.max_filler = reader.integer("max_filler", 0, kMaxLength / 4, spec.max_filler);
  spec.min_filler = reader.integer("min_filler", 0, spec.max_filler, spec.min_filler);
  read_counts(reader, spec);
  if (const int64_t symbols = sequence_shape(spec).vocabulary; symbols > kMostSymbols) {
    reader.fail("keys", "with values, fillers and the padding there are " +
                            std::to_string(symbols) + " symbols, at most " +
                            std::to_string(kMostSymbols) + " are possible");
  }
}

}  // namespace

Result<DataSpec> parse_data_spec(const Json& json, const std::string& where) {
  JsonReader reader(json, where);
  DataSpec spec;
  spec.kind = static_cast<DataKind>(reader.choice("kind", kKindNames));
  switch (spec.kind) {
    case DataKind::kMnist: spec.holdout = reader.integer("holdout", 0, 59'999, spec.holdout); break;
    case DataKind::kCifar10:
      spec.holdout = reader.integer("holdout", 0, 49'999, spec.holdout);
      break;
    case DataKind::kTextBytes: read_text_keys(reader, spec); break;
    case DataKind::kCopy: read_copy_keys(reader, spec); break;
    case DataKind::kRecall: read_recall_keys(reader, spec); break;
    case DataKind::kAn4Mfcc: read_an4_keys(reader, spec); break;
    case DataKind::kAudio: read_audio_keys(reader, spec); break;
  }
  TARN_RETURN_IF_ERROR(reader.finish());
  return spec;
}

Json to_json(const DataSpec& spec) {
  Json json;
  json.set("kind", kKindNames[static_cast<size_t>(spec.kind)]);
  switch (spec.kind) {
    case DataKind::kMnist:
    case DataKind::kCifar10: json.set("holdout", spec.holdout); break;
    case DataKind::kTextBytes:
      json.set("file", spec.file);
      json.set("length", spec.length);
      json.set("valid_fraction", spec.valid_fraction);
      json.set("test_fraction", spec.test_fraction);
      break;
    case DataKind::kCopy:
      json.set("symbols", spec.symbols);
      json.set("min_symbols", spec.min_symbols);
      json.set("max_symbols", spec.max_symbols);
      json.set("epoch_sequences", spec.epoch_sequences);
      json.set("held_out_sequences", spec.held_out_sequences);
      break;
    case DataKind::kRecall:
      json.set("keys", spec.keys);
      json.set("values", spec.values);
      json.set("fillers", spec.fillers);
      json.set("min_pairs", spec.min_pairs);
      json.set("max_pairs", spec.max_pairs);
      json.set("min_filler", spec.min_filler);
      json.set("max_filler", spec.max_filler);
      json.set("epoch_sequences", spec.epoch_sequences);
      json.set("held_out_sequences", spec.held_out_sequences);
      break;
    case DataKind::kAn4Mfcc:
      json.set("holdout_speakers", spec.holdout_speakers);
      json.set("join", spec.join);
      break;
    case DataKind::kAudio:
      json.set("unit", kUnitNames[static_cast<size_t>(spec.unit)]);
      json.set("join", spec.join);
      break;
  }
  return json;
}

}  // namespace tarn::data
