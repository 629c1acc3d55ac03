#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/dataset.h"

namespace tarn::data {

/// One utterance: rows of features and the symbols that are spoken, without times.
struct Utterance {
  std::string name;
  std::string speaker;
  std::vector<float> frames;    ///< [length, features] of its data set
  std::vector<int32_t> labels;  ///< from 1: symbols[label − 1]; 0 is left to the blank
};

/// One split of a data set of speech in memory.
struct FrameDataset {
  DataSpec spec;
  Split split = Split::kTrain;
  int64_t features = 0;              ///< numbers per frame: channels, their differences, and theirs
  int64_t channels = 0;              ///< measured numbers per frame; features are 3 times as many
  int64_t frame_rate = 0;            ///< frames per second
  std::vector<std::string> symbols;  ///< names of the labels, the same in every split
  std::vector<Utterance> utterances;

  int64_t count() const { return static_cast<int64_t>(utterances.size()); }
  int64_t length(int64_t index) const {
    return static_cast<int64_t>(utterances[static_cast<size_t>(index)].frames.size()) / features;
  }
};

/// Loads one split of `spec`, a kind of frames, from folder `directory`. Errors: files that are
/// missing or malformed, words without a pronunciation, a split without utterances.
///
/// an4_mfcc: the CMU Census (AN4) database as Sphinx packs it: etc/an4_{train,test}.{fileids,
/// transcription}, etc/an4.dic, feat/ID.mfc; fillers such as <s> are left out of transcripts. Labels are
/// the phones of each word's first entry in the dictionary; their names are the dictionary's phones in
/// alphabetical order. Of the training speakers, in the order of the list of files, every
/// holdout_speakers-th is in the valid split.
Result<FrameDataset> load_frames(const DataSpec& spec, const std::string& directory, Split split);

// The parts of which loading consists.

/// A Sphinx file: the number of values as a big-endian int32, then that many big-endian floats,
/// `channels` per frame.
Result<std::vector<float>> parse_sphinx_features(std::string_view content, int64_t channels,
                                                 const std::string& where);

/// Frames [length, 3·channels]: x, its slope d over five frames and the slope of d, where
/// d_t = Σ_n n·(x_{t+n} − x_{t−n}) / (2·Σ_n n²), n = 1, 2; the first and last frames are repeated beyond
/// the ends.
std::vector<float> with_differences(const std::vector<float>& frames, int64_t channels);

/// Brings every feature of every speaker to mean 0 and variance 1 over all of the speaker's frames.
void normalise_speakers(int64_t features, std::vector<Utterance>& utterances);

/// Joins utterances of one speaker, in their order and beginning anew after the last, until the result
/// has `min_frames`; every utterance is used once, and some a second time to fill the last result.
std::vector<Utterance> join_utterances(const std::vector<Utterance>& utterances, int64_t features,
                                       int64_t min_frames);

}  // namespace tarn::data
