#include "audio/sound_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace tarn::audio {
namespace {

std::string little_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

/// A WAV file: format 1 is 16-bit integers, 3 floats.
std::string wav(uint32_t format, uint32_t channels, const std::string& samples,
                uint32_t promised = UINT32_MAX) {
  const uint32_t bits = format == 1 ? 16 : 32;
  if (promised == UINT32_MAX) promised = static_cast<uint32_t>(samples.size());
  return "RIFF" + little_endian(promised + 36, 4) + "WAVEfmt " + little_endian(16, 4) +
         little_endian(format, 2) + little_endian(channels, 2) + little_endian(8000, 4) +
         little_endian(8000 * channels * bits / 8, 4) + little_endian(channels * bits / 8, 2) +
         little_endian(bits, 2) + "data" + little_endian(promised, 4) + samples;
}

std::string integers(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += little_endian(static_cast<uint32_t>(value), 2);
  return text;
}

std::string floats(const std::vector<float>& values) {
  std::string text;
  for (const float value : values) text += little_endian(std::bit_cast<uint32_t>(value), 4);
  return text;
}

/// All samples, read `piece` at a time, or the error.
Result<std::vector<float>> drain(Result<SoundReader> reader, size_t piece) {
  if (!reader.ok()) return reader.error();
  std::vector<float> all, some(piece);
  for (;;) {
    TARN_ASSIGN(const int64_t got, reader->read(some));
    if (got == 0) return all;
    all.insert(all.end(), some.begin(), some.begin() + got);
  }
}

class SoundReaderTest : public testing::Test {
 protected:
  SoundReaderTest()
      : path_(std::filesystem::temp_directory_path() / ("tarn_sound_" + std::to_string(getpid()))) {
  }
  ~SoundReaderTest() override { std::filesystem::remove(path_); }

  Result<std::vector<float>> from_file(const std::string& content, size_t piece = 3) const {
    std::ofstream(path_, std::ios::binary) << content;
    return drain(SoundReader::open(path_.string(), RawKind::kNone, 0), piece);
  }
  static Result<std::vector<float>> from_pipe(const std::string& content,
                                              RawKind raw = RawKind::kNone) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    std::thread writer([&] {
      for (const char byte : content) {
        if (write(ends[1], &byte, 1) != 1) break;
      }
      close(ends[1]);
    });
    auto result = drain(SoundReader::from_descriptor(ends[0], "stdin", raw, 8000), 4);
    writer.join();
    close(ends[0]);
    return result;
  }
  std::string error(const std::string& content) const {
    const auto result = from_file(content);
    return result.ok() ? "" : result.error().to_string();
  }

  std::filesystem::path path_;
};

const std::vector<int> kIntegers = {0, 16384, -32768, 32767, -1, 5, 7};
const std::vector<float> kScaled = {0.0f,          0.5f,         -1.0f,       32767 / 32768.0f,
                                    -1 / 32768.0f, 5 / 32768.0f, 7 / 32768.0f};

TEST_F(SoundReaderTest, ReadsIntegersAndFloats) {
  EXPECT_EQ(*from_file(wav(1, 1, integers(kIntegers))), kScaled);
  const std::vector<float> values = {0.25f, -3.5f, 1e-20f};
  EXPECT_EQ(*from_file(wav(3, 1, floats(values))), values);
}

TEST_F(SoundReaderTest, SeveralChannelsBecomeTheirMean) {
  EXPECT_EQ(*from_file(wav(1, 2, integers({0, 16384, -32768, 32766}))),
            (std::vector<float>{0.25f, -1 / 32768.0f}));
}

TEST_F(SoundReaderTest, ReadsFlac) {
  const std::string golden = TARN_SOURCE_DIR "/tests/unit/audio/golden/telephone";
  const Json json = *parse_json(*read_file(golden + ".json", 1 << 20), "json");
  std::vector<float> wanted;
  for (const Json& value : *json.find("samples")->as_array()) {
    wanted.push_back(static_cast<float>(*value.as_int()) / 32768.0f);
  }
  EXPECT_EQ(*drain(SoundReader::open(golden + ".flac", RawKind::kNone, 0), 1000), wanted);
  const std::string content = *read_file(golden + ".flac", 1 << 20);
  EXPECT_FALSE(from_file(content.substr(0, content.size() / 2)).ok());
}

TEST_F(SoundReaderTest, ReadsPipes) {
  EXPECT_EQ(*from_pipe(wav(1, 1, integers(kIntegers))), kScaled);
  EXPECT_EQ(*from_pipe(wav(1, 1, integers(kIntegers), 0xffffffdb)), kScaled) << "an open length";
  EXPECT_EQ(*from_pipe(integers(kIntegers), RawKind::kInt16), kScaled);
  EXPECT_EQ(*from_pipe(floats({0.5f, 2.0f}), RawKind::kFloat32), (std::vector<float>{0.5f, 2.0f}));
  EXPECT_TRUE(from_pipe("", RawKind::kInt16)->empty());
  EXPECT_FALSE(from_pipe("").ok());
  const auto cut = from_pipe(wav(1, 1, integers(kIntegers), 100));
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.error().message.find("has 7 samples, its header promises 50"), std::string::npos);
}

TEST_F(SoundReaderTest, RefusesWhatIsNoSoundOrNotAllOfIt) {
  EXPECT_TRUE(from_file(wav(1, 1, ""))->empty());
  EXPECT_NE(error("not a sound, only text").find("no sound"), std::string::npos);
  EXPECT_NE(error("").find("no sound"), std::string::npos);
  EXPECT_NE(error(wav(3, 1, floats({1.0f, NAN, 2.0f}))).find("sample 1 is not a finite"),
            std::string::npos);
  EXPECT_NE(error(wav(3, 1, floats({1.0f, 2.0f, 3.0f, 4.0f, -INFINITY}))).find("sample 4"),
            std::string::npos);
  const std::string whole = wav(1, 1, integers(kIntegers));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(from_file(whole.substr(0, size)).ok()) << "cut to " << size << " bytes";
  }
  // The chunk of samples promises more than the file has, whatever the whole promises.
  for (const uint32_t size : {0u, 36u, 0x7fffffffu, 0xffffffffu}) {
    for (const uint32_t samples : {16u, 0x7fffffffu, 0xfffffffeu}) {
      std::string cut = wav(1, 1, integers(kIntegers), samples);
      cut.replace(4, 4, little_endian(size, 4));
      EXPECT_NE(error(cut).find("is cut off"), std::string::npos) << size << " " << samples;
    }
  }
  // AU: magic, header bytes, data bytes, 16-bit integers, rate, channels; big-endian.
  std::string au = ".snd";
  for (const uint32_t value : {24u, 4u, 3u, 8000u, 1u}) {
    const std::string bytes = little_endian(value, 4);
    au.append(bytes.rbegin(), bytes.rend());
  }
  EXPECT_NE(error(au + "abcd").find("wanted WAV or FLAC"), std::string::npos);
  const auto missing = SoundReader::open("/nonexistent/x.wav", RawKind::kNone, 0);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(SoundReader::open("/tmp", RawKind::kNone, 0).ok());
}

TEST_F(SoundReaderTest, KnowsItsRate) {
  std::ofstream(path_, std::ios::binary) << wav(1, 2, integers(kIntegers));
  const auto reader = SoundReader::open(path_.string(), RawKind::kNone, 0);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(reader->channels(), 2);
  EXPECT_TRUE(reader->expect_rate(8000).ok());
  const Status other = reader->expect_rate(16000);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().message, "has 8000 samples per second, the model takes 16000");
}

}  // namespace
}  // namespace tarn::audio
