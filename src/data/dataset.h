#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tarn::data {

enum class DataKind : uint8_t {
  kMnist,      ///< IDX files; 784 grey levels of a digit, raster order
  kCifar10,    ///< binary batches; 3,072 levels, raster order, R G B of a pixel side by side
  kTextBytes,  ///< bytes of one file, cut into windows
  kCopy,       ///< generated: symbols, separator, the same symbols again
  kRecall,     ///< generated: pairs of keys and values, then the keys asked again
  kAn4Mfcc,    ///< speech: cepstra of utterances and their phones (data/frames.h)
  kAudio,      ///< speech: sound files and their transcripts (data/frames.h)
};
/// What labels of transcripts are.
enum class LabelUnit : uint8_t { kCharacters, kWords };
enum class Split : uint8_t { kTrain, kValid, kTest };

/// "train", "valid" or "test".
Result<Split> split_from_name(const std::string& name, const std::string& where);
const char* split_name(Split split);

/// What to read: the "data" object of a training config.
struct DataSpec {
  DataKind kind = DataKind::kMnist;
  /// mnist, cifar10: the last `holdout` training images are the valid split.
  int64_t holdout = 5'000;
  /// text_bytes: file name inside the folder ("": the folder path is the file itself), window
  /// length, and the shares of the file's end that are valid and test: [train | valid | test].
  std::string file;
  int64_t length = 0;
  double valid_fraction = 0.05;
  double test_fraction = 0.05;
  /// copy: n symbols out of `symbols`, min_symbols <= n <= max_symbols; sequences per epoch.
  int64_t symbols = 10;
  int64_t min_symbols = 1;
  int64_t max_symbols = 128;
  /// recall: n pairs, min_pairs <= n <= max_pairs, of a key out of `keys` and a value out of
  /// `values`; f fillers out of `fillers` symbols, min_filler <= f <= max_filler.
  int64_t keys = 64;
  int64_t values = 64;
  int64_t min_pairs = 1;
  int64_t max_pairs = 16;
  int64_t fillers = 1;
  int64_t min_filler = 0;
  int64_t max_filler = 0;
  /// copy, recall: sequences per epoch; of the valid and of the test split, at most as many.
  int64_t epoch_sequences = 65'536;
  int64_t held_out_sequences = 2'048;
  /// an4_mfcc: every that many-th of the training speakers is in the valid split instead.
  int64_t holdout_speakers = 10;
  /// an4_mfcc, audio: utterances of one speaker are joined until they have that many frames; 0: they are
  /// not.
  int64_t join = 0;
  /// audio: what a label is.
  LabelUnit unit = LabelUnit::kCharacters;
};

/// Reads {"kind": …, keys of that kind}. Unknown keys are errors that name the key.
Result<DataSpec> parse_data_spec(const Json& json, const std::string& where);
/// The document that parses to the same spec.
Json to_json(const DataSpec& spec);

/// Whether sequences are frames with labels: load_frames() (data/frames.h) instead of load().
bool is_frames(DataKind kind);

/// What one of the labels of frames is called: "phone", "letter" or "word".
const char* label_name(const DataSpec& spec);

/// Whether sequences are computed from the seed instead of read from files.
bool is_generated(DataKind kind);

struct SequenceShape {
  int64_t length = 0;
  int64_t vocabulary = 0;
};
/// What sequences of that spec look like, without reading any; zeros for frames.
SequenceShape sequence_shape(const DataSpec& spec);

/// One split in memory: `count` sequences of `length` tokens, each token < `vocabulary`.
struct SequenceDataset {
  DataSpec spec;
  Split split = Split::kTrain;
  int64_t count = 0;
  int64_t length = 0;
  int64_t vocabulary = 0;
  std::vector<uint8_t> bytes;  ///< images or text; empty for generated data
  uint64_t seed = 0;           ///< generated data and window offsets

  /// Writes sequence `index` < count of pass `epoch` to tokens[length], and to counted[length]
  /// (nullable) 1 where the token counts in the loss, else 0. A pure function of its arguments.
  /// Images do not depend on `epoch`; training windows of text shift with it; generated
  /// sequences are new in every epoch of the training split and the same in every epoch of the
  /// others.
  void sequence(int64_t epoch, int64_t index, uint8_t* tokens, uint8_t* counted) const;
};

/// Loads one split from folder `directory` (unused for generated data). Files that are missing, of the wrong
/// size or with a wrong magic number are errors.
Result<SequenceDataset> load(const DataSpec& spec, const std::string& directory, Split split,
                             uint64_t seed = 0);

/// The order of `count` sequences in pass `epoch`: a permutation that depends on (seed, epoch)
/// alone, so that training resumes exactly. Cost: O(count).
std::vector<int32_t> epoch_order(int64_t count, uint64_t seed, int64_t epoch);

}  // namespace tarn::data
