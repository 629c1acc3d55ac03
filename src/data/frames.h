#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "audio/frontend_config.h"
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
  int64_t features = 0;              ///< numbers per frame: channels and what differences there are
  int64_t channels = 0;              ///< measured numbers per frame
  int64_t frame_rate = 0;            ///< frames per second
  std::vector<std::string> symbols;  ///< names of the labels, the same in every split
  std::vector<Utterance> utterances;

  int64_t count() const { return static_cast<int64_t>(utterances.size()); }
  int64_t length(int64_t index) const {
    return static_cast<int64_t>(utterances[static_cast<size_t>(index)].frames.size()) / features;
  }
};

/// What a model says about the frames it takes.
struct FrameSource {
  std::optional<audio::FrontendConfig> frontend;
  std::vector<std::string> symbols;  ///< names of its labels; none: those of the training split
};

/// Loads one split of `spec`, a kind of frames, from folder `directory`. Errors: files that are
/// missing or malformed, words without a pronunciation, a split without utterances, sound without a front
/// end or of another rate than its, labels that are not among the symbols.
///
/// an4_mfcc: the CMU Census (AN4) database as Sphinx packs it: etc/an4_{train,test}.{fileids,
/// transcription}, etc/an4.dic, feat/ID.mfc; fillers such as <s> are left out of transcripts. Labels are
/// the phones of each word's first entry in the dictionary; their names are the dictionary's phones in
/// alphabetical order. Of the training speakers, in the order of the list of files, every
/// holdout_speakers-th is in the valid split.
///
/// audio: manifests {train,valid,test}.tsv of lines "PATH<TAB>TRANSCRIPT[<TAB>SPEAKER]"; paths are relative
/// to the folder, and without a speaker the file's folder is one. Labels are the characters of the
/// transcript, runs of white space as one space, or its words; their names are in the order of their bytes.
/// Sound is joined before it becomes frames, with a space between the transcripts; in the training split to
/// varied lengths up to `join`, so that what is learnt depends on none.
Result<FrameDataset> load_frames(const DataSpec& spec, const std::string& directory, Split split,
                                 const FrameSource& source = {});

// The parts of which loading consists.

Result<FrameDataset> load_an4(const DataSpec& spec, const std::string& directory, Split split);
Result<FrameDataset> load_audio(const DataSpec& spec, const std::string& directory, Split split,
                                const FrameSource& source);

/// Sound to frames: every utterance's samples become its frames [length, features], normalised as the front
/// end says; per speaker over all of the given utterances.
void make_frames(const audio::FrontendConfig& frontend, std::vector<Utterance>& utterances);

/// A Sphinx file: the number of values as a big-endian int32, then that many big-endian floats,
/// `channels` per frame.
Result<std::vector<float>> parse_sphinx_features(std::string_view content, int64_t channels,
                                                 const std::string& where);

/// Frames [length, channels·(1 + order)] with the slopes of audio::Differences.
std::vector<float> with_differences(const std::vector<float>& frames, int64_t channels,
                                    int64_t order);

/// Brings every feature of every speaker to mean 0 and variance 1 over all of the speaker's frames.
void normalise_speakers(int64_t features, std::vector<Utterance>& utterances);

/// Joins utterances of one speaker, in their order and beginning anew after the last, until the result
/// has `min_frames`; every utterance is used once, and some a second time to fill the last result. Between
/// the labels of two stands `separator`, unless it is 0. With `vary` result i of all has instead the share
/// of min_frames that is the fraction of i times the golden ratio: short and long ones, evenly.
std::vector<Utterance> join_utterances(const std::vector<Utterance>& utterances, int64_t features,
                                       int64_t min_frames, int32_t separator = 0,
                                       bool vary = false);

}  // namespace tarn::data
