#include "data/frames.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "unit/data/an4_folder.h"

namespace tarn::data {
namespace {

TEST(Frames, SphinxFilesAreBigEndianAndWhole) {
  const std::vector<float> values = {1.5f, -2.0f, 1e-3f, 40.0f};
  const std::string content = sphinx_file(values);
  const auto parsed = parse_sphinx_features(content, 2, "f.mfc");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(*parsed, values);
  EXPECT_FALSE(parse_sphinx_features(content, 3, "f").ok());
  EXPECT_FALSE(parse_sphinx_features(content.substr(0, 19), 2, "f").ok());
  EXPECT_FALSE(parse_sphinx_features(content + "x", 2, "f").ok());
  EXPECT_FALSE(parse_sphinx_features("", 2, "f").ok());
  EXPECT_FALSE(parse_sphinx_features(big_endian(0x80000004), 2, "f").ok());
  EXPECT_FALSE(parse_sphinx_features(sphinx_file({1.0f, NAN}), 2, "f").ok());
}

TEST(Frames, DifferencesAreSlopes) {
  // A straight line has its slope inside and, where the ends are repeated, less of it; squares have
  // twice the place as slope.
  std::vector<float> frames;
  for (int t = 0; t < 9; ++t) {
    frames.push_back(static_cast<float>(3 * t));
    frames.push_back(static_cast<float>(t * t));
  }
  const std::vector<float> got = with_differences(frames, 2, 2);
  ASSERT_EQ(got.size(), 54u);
  const auto at = [&](size_t t, size_t feature) { return got[t * 6 + feature]; };
  EXPECT_EQ(at(4, 0), 12.0f);
  EXPECT_EQ(at(4, 1), 16.0f);
  EXPECT_FLOAT_EQ(at(4, 2), 3.0f);
  EXPECT_FLOAT_EQ(at(4, 3), 8.0f);
  EXPECT_FLOAT_EQ(at(4, 4), 0.0f);
  EXPECT_FLOAT_EQ(at(4, 5), 2.0f);
  EXPECT_FLOAT_EQ(at(0, 2), (1 * 3.0f + 2 * 6.0f) / 10.0f);
  EXPECT_FLOAT_EQ(at(8, 3), (1 * (64.0f - 49.0f) + 2 * (64.0f - 36.0f)) / 10.0f);
}

Utterance utterance(const std::string& speaker, std::vector<float> frames,
                    std::vector<int32_t> labels = {1}) {
  return {speaker + "-u", speaker, std::move(frames), std::move(labels)};
}

TEST(Frames, SpeakersAreBroughtToMeanZeroAndVarianceOne) {
  std::vector<Utterance> utterances = {utterance("a", {1, 10, 3, 10}), utterance("b", {7, 0}),
                                       utterance("a", {5, 10, 7, 10})};
  normalise_speakers(2, utterances);
  const double deviation = std::sqrt(5.0);  // of 1, 3, 5, 7 around 4
  EXPECT_FLOAT_EQ(utterances[0].frames[0], static_cast<float>(-3.0 / deviation));
  EXPECT_FLOAT_EQ(utterances[2].frames[2], static_cast<float>(3.0 / deviation));
  EXPECT_EQ(utterances[2].frames[3], 0.0f);  // a feature that never changes
  EXPECT_EQ(utterances[1].frames[0], 0.0f);
}

TEST(Frames, JoinedUtterancesFillUpWithinTheSpeaker) {
  const std::vector<Utterance> utterances = {utterance("a", {1, 2}, {1}),
                                             utterance("b", {9}, {7, 8}), utterance("a", {3}, {2}),
                                             utterance("a", {4}, {3})};
  const std::vector<Utterance> joined = join_utterances(utterances, 1, 3);
  ASSERT_EQ(joined.size(), 3u);
  EXPECT_EQ(joined[0].frames, (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(joined[0].labels, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(joined[1].frames, (std::vector<float>{4, 1, 2}));
  EXPECT_EQ(joined[1].labels, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(joined[2].frames, (std::vector<float>{9, 9, 9}));
  EXPECT_EQ(joined[2].speaker, "b");
  const std::vector<Utterance> spaced = join_utterances(utterances, 1, 3, 5);
  EXPECT_EQ(spaced[1].labels, (std::vector<int32_t>{3, 5, 1}));
}

TEST(Frames, VariedLengthsAreEvenlyShortAndLong) {
  std::vector<Utterance> utterances;
  for (int i = 0; i < 500; ++i) utterances.push_back(utterance("a", {1.0f}));
  const std::vector<Utterance> joined = join_utterances(utterances, 1, 10, 0, true);
  size_t total = 0;
  std::vector<int> lengths(11);
  for (const Utterance& one : joined) {
    ASSERT_LE(one.frames.size(), 10u);
    ++lengths[one.frames.size()];
    total += one.frames.size();
  }
  EXPECT_GE(total, 500u);
  for (size_t length = 2; length < 10; ++length) {
    EXPECT_NEAR(lengths[length], static_cast<double>(joined.size()) / 10, 3.0) << length;
  }
}

class An4Test : public testing::Test {
 protected:
  An4Test() {
    spec_.kind = DataKind::kAn4Mfcc;
    spec_.holdout_speakers = 2;
  }
  Result<FrameDataset> load(Split split) const { return load_frames(spec_, folder_.path(), split); }
  std::string error(Split split) const {
    const auto loaded = load(split);
    return loaded.ok() ? "" : loaded.error().to_string();
  }

  An4Folder folder_;
  DataSpec spec_;
};

TEST_F(An4Test, SplitsBySpeakerAndReadsFirstPronunciations) {
  const auto train = load(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.error().to_string();
  EXPECT_EQ(train->symbols, (std::vector<std::string>{"AH", "EH", "G", "OW", "S", "Y"}));
  EXPECT_EQ(train->features, 39);
  ASSERT_EQ(train->count(), 3);
  EXPECT_EQ(train->utterances[0].name, "u1-s1");
  EXPECT_EQ(train->utterances[0].labels, (std::vector<int32_t>{6, 2, 5}));
  EXPECT_EQ(train->utterances[1].name, "u3-s1");
  EXPECT_EQ(train->utterances[1].labels, (std::vector<int32_t>{6, 2, 5, 3, 4}));
  EXPECT_EQ(train->utterances[2].speaker, "s3");
  EXPECT_EQ(train->length(0), 12);
  const auto valid = load(Split::kValid);
  ASSERT_TRUE(valid.ok());
  ASSERT_EQ(valid->count(), 1);
  EXPECT_EQ(valid->utterances[0].speaker, "s2");
  const auto test = load(Split::kTest);
  ASSERT_TRUE(test.ok());
  EXPECT_EQ(test->utterances[0].labels, (std::vector<int32_t>{3, 4, 3, 4}));
}

TEST_F(An4Test, WhatIsMissingIsNamed) {
  folder_.write("etc/an4_test.transcription", "STOP (u5-t1)\n");
  EXPECT_NE(error(Split::kTest).find("word \"STOP\" is not in the dictionary"), std::string::npos);
  folder_.write("etc/an4_test.transcription", "GO\n");
  EXPECT_NE(error(Split::kTest).find("a line ends with \"GO\""), std::string::npos);
  folder_.write("etc/an4_test.transcription", "GO (other)\n");
  EXPECT_NE(error(Split::kTest).find("utterance \"u5-t1\" has no transcript"), std::string::npos);
  folder_.remove("feat/train/s2/u2-s2.mfc");
  EXPECT_NE(error(Split::kValid).find("u2-s2.mfc"), std::string::npos);
  spec_.holdout_speakers = 100;
  EXPECT_NE(error(Split::kValid).find("the valid split has no utterances"), std::string::npos);
  EXPECT_FALSE(load_frames(spec_, "", Split::kTest).ok());
  EXPECT_FALSE(data::load(spec_, folder_.path(), Split::kTest).ok());
}

TEST(Frames, SpecsRoundTrip) {
  const auto json = parse_json(R"({"kind": "an4_mfcc", "holdout_speakers": 5, "join": 2400})", "d");
  const auto spec = parse_data_spec(*json, "data");
  ASSERT_TRUE(spec.ok()) << spec.error().to_string();
  EXPECT_TRUE(is_frames(spec->kind));
  EXPECT_EQ(spec->join, 2400);
  EXPECT_EQ(to_json(*spec), *json);
  EXPECT_FALSE(
      parse_data_spec(*parse_json(R"({"kind": "an4_mfcc", "join": -1})", "d"), "data").ok());
  EXPECT_FALSE(
      parse_data_spec(*parse_json(R"({"kind": "an4_mfcc", "length": 3})", "d"), "data").ok());
}

}  // namespace
}  // namespace tarn::data
