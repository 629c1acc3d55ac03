#include "audio/frontend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/file.h"

namespace tarn::audio {
namespace {

FrontendConfig config_of(const std::string& text) {
  const auto config = parse_frontend_config(*parse_json(text, "frontend"), "frontend");
  EXPECT_TRUE(config.ok()) << config.error().to_string();
  return *config;
}

std::string error_of(const std::string& text) {
  const auto config = parse_frontend_config(*parse_json(text, "frontend"), "frontend");
  return config.ok() ? "" : config.error().to_string();
}

double number(const Json& json) {
  return json.as_int() != nullptr ? static_cast<double>(*json.as_int()) : *json.as_double();
}

/// Energy of the transform of window t: the errors of its bins are relative to this.
double frame_energy(const FrontendConfig& config, const std::vector<float>& samples, int64_t t) {
  double sum = 0.0;
  for (int64_t i = 0; i < config.window_samples(); ++i) {
    const auto at = static_cast<size_t>(t * config.hop_samples() + i);
    sum += static_cast<double>(samples[at]) * static_cast<double>(samples[at]);
  }
  // Parseval; pre-emphasis at most quadruples, and windows only take away.
  return 4.0 * sum * static_cast<double>(config.fft_size());
}

void check_golden(const std::string& name) {
  const std::string path =
      std::string(TARN_SOURCE_DIR "/tests/unit/audio/golden/") + name + ".json";
  const auto text = read_file(path, 1 << 20);
  ASSERT_TRUE(text.ok()) << text.error().to_string();
  const Json golden = *parse_json(*text, path);
  const auto config = parse_frontend_config(*golden.find("config"), "config");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  std::vector<float> samples;
  for (const Json& value : *golden.find("samples")->as_array()) {
    samples.push_back(static_cast<float>(*value.as_int()) / 32768.0f);
  }
  Frontend frontend(*config);
  std::vector<float> rows;
  frontend.push(samples, rows);
  frontend.finish(rows);
  const Json::Array& wanted = *golden.find("rows")->as_array();
  ASSERT_EQ(rows.size(), wanted.size() * static_cast<size_t>(config->mels));
  // Two float transforms of 2^k points, each with about k roundings, squared; twice that of the generator's
  // own bound would be 128.
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  for (size_t t = 0; t < wanted.size(); ++t) {
    const double scale = frame_energy(*config, samples, static_cast<int64_t>(t)) + kEps;
    for (size_t m = 0; m < static_cast<size_t>(config->mels); ++m) {
      const double want = std::exp(number((*wanted[t].as_array())[m]));
      const double got =
          std::exp(static_cast<double>(rows[t * static_cast<size_t>(config->mels) + m]));
      EXPECT_NEAR(got, want, 32.0 * kEps * scale) << name << " frame " << t << " band " << m;
    }
  }
}

TEST(Frontend, IsThatOfKaldi) {
  check_golden("telephone");
  check_golden("wide_band");
}

std::vector<float> noise(size_t count) {
  std::vector<float> samples;
  uint32_t state = 7;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    const float loudness = i / 700 % 2 == 0 ? 0.3f : 0.01f;
    samples.push_back(loudness * (static_cast<float>(state >> 8) / 8388608.0f - 1.0f));
  }
  return samples;
}

std::vector<float> rows_of(const FrontendConfig& config, const std::vector<float>& samples,
                           size_t piece) {
  Frontend frontend(config);
  std::vector<float> rows;
  for (size_t at = 0; at < samples.size(); at += piece) {
    frontend.push(std::span(samples).subspan(at, std::min(piece, samples.size() - at)), rows);
  }
  frontend.finish(rows);
  return rows;
}

TEST(Frontend, CutsOfTheSoundChangeNoBit) {
  const std::vector<float> samples = noise(8000);
  for (const char* text :
       {R"({"sample_rate": 8000, "differences": 2, "normalisation": {"kind": "running"}})",
        R"({"sample_rate": 8000, "differences": 1, "mels": 13})",
        R"({"sample_rate": 8000, "window_ms": 8, "hop_ms": 21, "mels": 8})"}) {
    const FrontendConfig config = config_of(text);
    const std::vector<float> whole = rows_of(config, samples, samples.size());
    const int64_t frames = (8000 - config.window_samples()) / config.hop_samples() + 1;
    EXPECT_EQ(static_cast<int64_t>(whole.size()), frames * config.features());
    for (const size_t piece : {1, 3, 79, 80, 200, 201, 1000}) {
      EXPECT_EQ(rows_of(config, samples, piece), whole) << text << " in pieces of " << piece;
    }
  }
}

TEST(Frontend, BeginsAnewAfterTheEnd) {
  const FrontendConfig config =
      config_of(R"({"sample_rate": 8000, "differences": 2, "normalisation": {"kind": "running"}})");
  const std::vector<float> samples = noise(2000);
  Frontend frontend(config);
  std::vector<float> first, second;
  frontend.push(samples, first);
  frontend.finish(first);
  frontend.push(samples, second);
  frontend.finish(second);
  EXPECT_EQ(first, second);
  EXPECT_FALSE(first.empty());
}

TEST(Frontend, ShortSoundHasFewFramesOrNone) {
  const FrontendConfig config = config_of(R"({"sample_rate": 8000, "differences": 2})");
  EXPECT_TRUE(rows_of(config, {}, 1).empty());
  EXPECT_TRUE(rows_of(config, noise(199), 50).empty());
  const std::vector<float> one = rows_of(config, noise(200), 200);
  ASSERT_EQ(one.size(), 120u);
  for (size_t i = 40; i < 120; ++i) EXPECT_EQ(one[i], 0.0f) << "a frame alone has no slope";
  EXPECT_EQ(rows_of(config, noise(280), 280).size(), 240u);
}

TEST(Frontend, SilenceIsTheFloor) {
  const FrontendConfig config = config_of(R"({"sample_rate": 8000})");
  for (const float value : rows_of(config, std::vector<float>(400, 0.25f), 400)) {
    EXPECT_FLOAT_EQ(value, -23.0f * std::log(2.0f));  // a constant is taken away as offset
  }
}

TEST(RunningNormaliser, IsTheWeightedMeanAndVarianceSoFar) {
  const FrontendConfig config = config_of(
      R"({"sample_rate": 8000, "mels": 1, "normalisation":
          {"kind": "running", "prior_mean": 2, "prior_deviation": 3, "prior_frames": 4, "horizon_frames": 9}})");
  RunningNormaliser normaliser(config);
  double mean = 2.0, square = 3.0 * 3.0 + 2.0 * 2.0;  // of x and of x²
  for (int t = 1; t <= 40; ++t) {
    const float x = static_cast<float>(t * t % 23);
    const double weight = std::max(1.0 / (4 + t), 1.0 / 9);
    mean = (1 - weight) * mean + weight * static_cast<double>(x);
    square = (1 - weight) * square + weight * static_cast<double>(x) * static_cast<double>(x);
    float row = x;
    normaliser.apply({&row, 1});
    const double want = (static_cast<double>(x) - mean) / std::sqrt(square - mean * mean);
    EXPECT_NEAR(static_cast<double>(row), want, 1e-6 * (1 + std::abs(want))) << "frame " << t;
  }
  normaliser.reset();
  float row = 2.0f;
  normaliser.apply({&row, 1});
  EXPECT_EQ(row, 0.0f);
}

TEST(FrontendConfig, RoundTripsAndNamesWhatIsWrong) {
  const FrontendConfig config = config_of(R"({"sample_rate": 16000})");
  EXPECT_EQ(config.window_samples(), 400);
  EXPECT_EQ(config.hop_samples(), 160);
  EXPECT_EQ(config.fft_size(), 512);
  EXPECT_EQ(config.frame_rate(), 100);
  EXPECT_EQ(config.high_hz, 8000.0);
  EXPECT_EQ(config.features(), 40);
  for (const char* text :
       {R"({"sample_rate": 16000})",
        R"({"sample_rate": 8000, "mels": 20, "window": "hann", "low_hz": 100, "high_hz": 3000,
            "differences": 2, "remove_offset": false, "pre_emphasis": 0.5, "window_ms": 32, "hop_ms": 8,
            "normalisation": {"kind": "running", "prior_frames": 7, "horizon_frames": 50}})",
        R"({"sample_rate": 8000, "normalisation": {"kind": "speaker"}})"}) {
    const Json json = to_json(config_of(text));
    EXPECT_EQ(to_json(config_of(json.dump())), json);
  }
  const auto expect = [](const char* text, const char* says) {
    EXPECT_NE(error_of(text).find(says), std::string::npos) << text << ": " << error_of(text);
  };
  expect(R"({})", "sample_rate");
  expect(R"({"sample_rate": 8000, "colour": 1})", "colour");
  expect(R"({"sample_rate": 8000, "high_hz": 4001})", "high_hz");
  expect(R"({"sample_rate": 8000, "low_hz": 300, "high_hz": 300})", "low_hz");
  expect(R"({"sample_rate": 8000, "window_ms": 0.2})", "window_ms");
  expect(R"({"sample_rate": 8000, "hop_ms": 0.1})", "hop_ms");
  expect(R"({"sample_rate": 8000, "mels": 200})", "holds no frequency");
  expect(R"({"sample_rate": 8000, "normalisation": {"kind": "speaker", "prior_mean": 1}})",
         "unknown key \"prior_mean\"");
  expect(R"({"sample_rate": 8000, "differences": 3})", "differences");
}

}  // namespace
}  // namespace tarn::audio
