// Folders of sound with manifests.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "audio/frontend.h"
#include "data/frames.h"

namespace tarn::data {
namespace {

std::string little_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

/// A tone of `count` samples, the n-th of its kind.
std::vector<int16_t> tone(int n, int count) {
  std::vector<int16_t> samples;
  for (int i = 0; i < count; ++i) {
    samples.push_back(static_cast<int16_t>(std::lround(3000.0 * std::sin(0.03 * (n + 1) * i) * n)));
  }
  return samples;
}

class AudioFolder : public testing::Test {
 protected:
  AudioFolder()
      : path_(std::filesystem::temp_directory_path() / ("tarn_audio_" + std::to_string(getpid()))) {
    for (int n = 1; n <= 4; ++n) wav("s" + std::to_string(n % 2) + "/" + std::to_string(n), n);
    write("train.tsv", "s1/1.wav\tone two\ts1\ns0/2.wav\tgo\ts0\n\ns1/3.wav\t go  \xc3\xbc \r\n");
    write("valid.tsv", "s0/4.wav\tto\n");
    write("test.tsv", path_.string() + "/s0/4.wav\ttwo two\n");
    spec_.kind = DataKind::kAudio;
    source_.frontend =
        *audio::parse_frontend_config(*parse_json(R"({"sample_rate": 8000, "mels": 6})", "f"), "f");
  }
  ~AudioFolder() override { std::filesystem::remove_all(path_); }

  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  void wav(const std::string& name, int n, int count = 480, uint32_t rate = 8000) const {
    std::string data;
    for (const int16_t sample : tone(n, count))
      data += little_endian(static_cast<uint16_t>(sample), 2);
    const auto size = static_cast<uint32_t>(data.size());
    write(name + ".wav", "RIFF" + little_endian(size + 36, 4) + "WAVEfmt " + little_endian(16, 4) +
                             little_endian(0x00010001, 4) + little_endian(rate, 4) +
                             little_endian(2 * rate, 4) + little_endian(0x00100002, 4) + "data" +
                             little_endian(size, 4) + data);
  }
  Result<FrameDataset> load(Split split) const {
    return load_frames(spec_, path_.string(), split, source_);
  }
  std::string error(Split split) const {
    const auto loaded = load(split);
    return loaded.ok() ? "" : loaded.error().to_string();
  }
  /// Frames of the n-th tones one after another.
  std::vector<float> frames_of(const std::vector<int>& tones) const {
    std::vector<float> samples, rows;
    for (const int n : tones) {
      for (const int16_t sample : tone(n, 480))
        samples.push_back(static_cast<float>(sample) / 32768.0f);
    }
    audio::Frontend frontend(*source_.frontend);
    frontend.push(samples, rows);
    frontend.finish(rows);
    return rows;
  }

  std::filesystem::path path_;
  DataSpec spec_;
  FrameSource source_;
};

TEST_F(AudioFolder, LabelsAreCharactersOfTheTrainingTranscripts) {
  const auto train = load(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.error().to_string();
  EXPECT_EQ(train->symbols,
            (std::vector<std::string>{" ", "e", "g", "n", "o", "t", "w", "\xc3\xbc"}));
  ASSERT_EQ(train->count(), 3);
  EXPECT_EQ(train->features, 6);
  EXPECT_EQ(train->channels, 6);
  EXPECT_EQ(train->frame_rate, 100);
  EXPECT_EQ(train->utterances[0].labels, (std::vector<int32_t>{5, 4, 2, 1, 6, 7, 5}));
  EXPECT_EQ(train->utterances[0].frames, frames_of({1}));
  EXPECT_EQ(train->utterances[0].speaker, "s1");
  EXPECT_EQ(train->utterances[2].labels, (std::vector<int32_t>{3, 5, 1, 8}));
  EXPECT_EQ(train->utterances[2].speaker, "s1") << "the file's folder";
  EXPECT_EQ(train->length(1), 4);
  const auto valid = load(Split::kValid);
  ASSERT_TRUE(valid.ok()) << valid.error().to_string();
  EXPECT_EQ(valid->symbols, train->symbols);
  EXPECT_EQ(valid->utterances[0].labels, (std::vector<int32_t>{6, 5}));
  EXPECT_STREQ(label_name(spec_), "letter");
}

TEST_F(AudioFolder, LabelsAreWords) {
  spec_.unit = LabelUnit::kWords;
  const auto test = load(Split::kTest);
  ASSERT_TRUE(test.ok()) << test.error().to_string();
  EXPECT_EQ(test->symbols, (std::vector<std::string>{"go", "one", "two", "\xc3\xbc"}));
  EXPECT_EQ(test->utterances[0].labels, (std::vector<int32_t>{3, 3}));
  EXPECT_STREQ(label_name(spec_), "word");
  EXPECT_NE(error(Split::kValid).find("\"to\", which is no label"), std::string::npos);
}

TEST_F(AudioFolder, SymbolsOfTheModelComeFirst) {
  source_.symbols = {"w", "o", "t", " "};
  std::filesystem::remove(path_ / "train.tsv");
  const auto test = load(Split::kTest);
  ASSERT_TRUE(test.ok()) << test.error().to_string();
  EXPECT_EQ(test->symbols, source_.symbols);
  EXPECT_EQ(test->utterances[0].labels, (std::vector<int32_t>{3, 1, 2, 4, 3, 1, 2}));
}

TEST_F(AudioFolder, SoundIsJoinedBeforeItBecomesFrames) {
  spec_.join = 7;  // 680 samples: two tones
  write("valid.tsv", "s1/1.wav\tone two\ns0/2.wav\tgo\ns1/3.wav\tgo \xc3\xbc\n");
  const auto valid = load(Split::kValid);
  ASSERT_TRUE(valid.ok()) << valid.error().to_string();
  ASSERT_EQ(valid->count(), 2);
  EXPECT_EQ(valid->utterances[1].frames, frames_of({1, 3}));
  EXPECT_EQ(valid->utterances[1].labels,
            (std::vector<int32_t>{5, 4, 2, 1, 6, 7, 5, 1, 3, 5, 1, 8}));
  EXPECT_EQ(valid->utterances[0].frames, frames_of({2, 2}));
  EXPECT_EQ(valid->utterances[0].labels, (std::vector<int32_t>{3, 5, 1, 3, 5}));
  // To 0.62, 0.24 and 0.85 of 680 samples: 420, 160 and 580.
  const auto train = load(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.error().to_string();
  ASSERT_EQ(train->count(), 3);
  EXPECT_EQ(train->utterances[0].frames, frames_of({2}));
  EXPECT_EQ(train->utterances[1].frames, frames_of({1}));
  EXPECT_EQ(train->utterances[2].frames, frames_of({3, 1}));
}

TEST_F(AudioFolder, SpeakersAreNormalisedOverAllTheirSound) {
  source_.frontend->normalisation = audio::NormalisationKind::kSpeaker;
  source_.frontend->differences = 1;
  const auto train = load(Split::kTrain);
  ASSERT_TRUE(train.ok()) << train.error().to_string();
  EXPECT_EQ(train->features, 12);
  EXPECT_EQ(train->channels, 6);
  for (size_t f = 0; f < 6; ++f) {
    double sum = 0.0, squares = 0.0;
    for (const size_t utterance : {0, 2}) {
      for (size_t t = 0; t < 4; ++t) {
        const auto value = static_cast<double>(train->utterances[utterance].frames[t * 12 + f]);
        sum += value;
        squares += value * value;
      }
    }
    EXPECT_NEAR(sum / 8, 0.0, 1e-6);
    EXPECT_NEAR(squares / 8, 1.0, 1e-5);
  }
  const std::vector<float>& frames = train->utterances[0].frames;
  const auto at = [&](size_t t) { return static_cast<double>(frames[12 * t]); };
  const double slope = ((at(1) - at(0)) + 2 * (at(2) - at(0))) / 10;
  EXPECT_NEAR(static_cast<double>(frames[6]), slope, 1e-6)
      << "slopes are those of what is normalised";
}

TEST_F(AudioFolder, WhatIsWrongIsNamed) {
  const auto expect = [this](const std::string& manifest, const char* says) {
    write("test.tsv", manifest);
    EXPECT_NE(error(Split::kTest).find(says), std::string::npos) << error(Split::kTest);
  };
  expect("s0/4.wav\n", "test.tsv: line 1: has 1 fields");
  expect("s0/4.wav\ttwo\ta\tb\n", "has 4 fields");
  expect("\ns0/4.wav\t \n", "line 2: the transcript is empty");
  expect("s0/4.wav\tt\xff\n", "no UTF-8");
  expect("s0/4.wav\ttw\xc3\n", "no UTF-8");
  expect("s0/5.wav\ttwo\n", "5.wav: cannot open");
  expect("train.tsv\ttwo\n", "no sound");
  expect("", "has no utterances");
  wav("fast", 1, 480, 16000);
  expect("fast.wav\ttwo\n", "has 16000 samples per second, the model takes 8000");
  wav("short", 1, 199);
  expect("short.wav\ttwo\n", "shorter than a window of 200 samples");
  std::filesystem::remove(path_ / "test.tsv");
  EXPECT_NE(error(Split::kTest).find("test.tsv"), std::string::npos);
  source_.frontend.reset();
  EXPECT_NE(error(Split::kTrain).find("frontend"), std::string::npos);
}

TEST(Audio, SpecsRoundTrip) {
  const auto json = parse_json(R"({"kind": "audio", "unit": "words", "join": 150})", "d");
  const auto spec = parse_data_spec(*json, "data");
  ASSERT_TRUE(spec.ok()) << spec.error().to_string();
  EXPECT_TRUE(is_frames(spec->kind));
  EXPECT_EQ(to_json(*spec), *json);
  EXPECT_FALSE(
      parse_data_spec(*parse_json(R"({"kind": "audio", "unit": "phones"})", "d"), "data").ok());
  EXPECT_FALSE(
      parse_data_spec(*parse_json(R"({"kind": "audio", "holdout_speakers": 3})", "d"), "data")
          .ok());
}

}  // namespace
}  // namespace tarn::data
